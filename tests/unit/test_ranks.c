/* Unit tests of tensor parallelism on the CPU: the parts of all ranks are the whole, ranks meet and part, and a model on two,
 * three or four ranks gives what it gives on one. */
#include "cpu/group.h"
#include "model/arch.h"
#include "tools/run.h"

#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- sizes ---- */

static struct backend_ops fake_ops = { .name = "fake" };

static enum status fake_reduce(struct backend *b, struct activation *x)
{
	(void)b, (void)x;
	return STATUS_OK;
}

struct sizes {
	uint32_t heads, kv_heads, head_dim, ffn, vocab, ranks;
	uint64_t attention_wanted, attention_needed, ffn_wanted, ffn_needed;
};

static enum status cut(const struct sizes *sizes, uint32_t rank, struct backend *backend, struct model *ret,
    struct error *error)
{
	const struct rank_units attention = { sizes->attention_wanted, sizes->attention_needed, "o.weight" };
	const struct rank_units ffn = { sizes->ffn_wanted, sizes->ffn_needed, "down.weight" };

	*backend = (struct backend){ .ops = &fake_ops, .rank = rank, .ranks = sizes->ranks };
	*ret = (struct model){ .backend = backend, .heads = sizes->heads, .kv_heads = sizes->kv_heads,
		.head_dim = sizes->head_dim };
	ret->info.kv_group_count = 1;
	ret->dims[DIM_Q] = sizes->heads * sizes->head_dim;
	ret->dims[DIM_KV] = sizes->kv_heads * sizes->head_dim;
	ret->dims[DIM_FFN] = sizes->ffn;
	ret->dims[DIM_VOCAB] = sizes->vocab;
	return rank_cut(ret, &attention, &ffn, &ffn, error);
}

static const struct sizes good[] = {
	{ 32, 8, 128, 11008, 32000, 1, 1, 1, 1, 1 },
	{ 32, 8, 128, 11008, 32000, 2, 1, 1, 1, 1 },
	{ 32, 8, 128, 13696, 151552, 8, 128, 1, 128, 1 }, /* fp8 blocks: 107 of them on 8 ranks */
	{ 9, 3, 64, 1536, 49152, 2, 32, 32, 32, 32 },     /* three KV heads: two and one */
	{ 14, 2, 64, 4864, 151936, 2, 8, 1, 128, 1 },
	{ 32, 2, 128, 13696, 65024, 8, 1, 1, 1, 1 },      /* four ranks share each KV head */
	{ 4, 4, 12, 100, 97, 3, 1, 1, 64, 1 },            /* nothing divides; groups of 64 cannot stay whole */
	{ 8, 4, 64, 1000, 640, 2, 256, 256, 256, 256 },   /* KV heads go in pairs, the last block of the FFN is a part of one */
};

START_TEST(parts_are_the_whole)
{
	const struct sizes *sizes = &good[_i];
	uint32_t            q = 0, ffn = 0, vocab = 0, per_kv = sizes->heads / sizes->kv_heads, largest = 0;

	for (uint32_t rank = 0; rank < sizes->ranks; rank++) {
		struct backend backend;
		struct model   model;
		struct error   error;

		ck_assert_msg(cut(sizes, rank, &backend, &model, &error) == STATUS_OK, "%s", error.message);
		ck_assert_uint_eq(model.whole[DIM_FFN], sizes->ffn);
		ck_assert_uint_eq(model.first[DIM_Q], q);
		ck_assert_uint_eq(model.first[DIM_FFN], ffn);
		ck_assert_uint_eq(model.first[DIM_VOCAB], vocab);
		ck_assert(model.heads > 0 && model.kv_heads > 0 && model.heads % model.kv_heads == 0);
		ck_assert_uint_eq(model.dims[DIM_Q], model.heads * sizes->head_dim);
		ck_assert_uint_eq(model.dims[DIM_KV], model.kv_heads * sizes->head_dim);
		if (sizes->ranks > 1) {
			ck_assert_uint_eq(model.dims[DIM_QKV], model.dims[DIM_Q] + 2 * model.dims[DIM_KV]);
			ck_assert_uint_eq(model.dims[DIM_GATE_UP], 2 * model.dims[DIM_FFN]);
			ck_assert_uint_eq(model.info.kv_groups[0].kv_heads, model.kv_heads);
		}
		/* Every query head finds its KV head here, at the place grouped attention looks for it. */
		for (uint32_t h = 0; h < model.heads; h++)
			ck_assert_uint_eq((q / sizes->head_dim + h) / per_kv,
			    model.first[DIM_KV] / sizes->head_dim + h / (model.heads / model.kv_heads));
		ck_assert(model.first[DIM_Q] % sizes->attention_needed == 0 && model.first[DIM_FFN] % sizes->ffn_needed == 0);
		q += model.dims[DIM_Q];
		ffn += model.dims[DIM_FFN];
		vocab += model.dims[DIM_VOCAB];
		if (rank == 0)
			largest = model.kv_heads;
		ck_assert(model.kv_heads <= largest && model.dims[DIM_FFN] > 0 && model.dims[DIM_VOCAB] > 0);
	}
	ck_assert(q == sizes->heads * sizes->head_dim && ffn == sizes->ffn && vocab == sizes->vocab);
}
END_TEST

static const struct {
	struct sizes sizes;
	const char  *words;
} bad[] = {
	{ { 4, 2, 64, 384, 384, 3, 1, 1, 1, 1 }, "4 heads over 2 KV heads cannot be shared out to 3 ranks" },
	{ { 6, 1, 20, 384, 384, 4, 1, 1, 1, 1 }, "6 heads over 1 KV heads cannot be shared out to 4 ranks" },
	{ { 4, 2, 64, 384, 384, 2, 256, 256, 1, 1 },
	    "tensor o.weight: 256 columns in blocks of 256, which are 4 heads over 2 KV heads" },
	{ { 4, 2, 64, 256, 384, 2, 1, 1, 256, 256 },
	    "tensor down.weight: 256 columns in blocks of 256 cannot be shared out to 2 ranks" },
	{ { 4, 4, 64, 384, 5, 4, 1, 1, 1, 1 }, "a vocabulary of 5 tokens cannot be shared out to 4 ranks" },
};

START_TEST(what_cannot_be_cut)
{
	struct backend backend;
	struct model   model;
	struct error   error;

	ck_assert_int_eq(cut(&bad[_i].sizes, 0, &backend, &model, &error), STATUS_UNSUPPORTED);
	ck_assert_msg(strstr(error.message, bad[_i].words) != NULL, "%s", error.message);
}
END_TEST

START_TEST(a_backend_that_is_always_alone)
{
	struct backend     backend;
	struct model       model;
	struct error       error;
	struct backend_ops ops = fake_ops;

	fake_ops.all_reduce = NULL;
	ck_assert_int_eq(cut(&good[1], 0, &backend, &model, &error), STATUS_UNSUPPORTED);
	ck_assert_str_eq(error.message, "rank 0 of 2: the backend fake computes alone");
	fake_ops = ops;
}
END_TEST

/* ---- meetings ---- */

enum { MEMBERS = 3, VALUES = 1001, ROUNDS = 50, ROWS = 3, WIDTH = 10, EACH = 4 };

struct member {
	struct cpu_seat seat;
	float           sums[VALUES], largest[VALUES], gathered[ROWS * WIDTH];
	enum status     status;
	uint32_t        rounds; /* 0: breaks the group instead */
};

static float value_of(uint32_t rank, uint32_t i)
{
	return (float)((i * 2654435761u >> 7) % 1000 + 1) * (rank == 1 ? -1e-3f : 1e3f);
}

static void *meet_often(void *argument)
{
	struct member *member = argument;

	for (uint32_t round = 0; round < member->rounds && !member->status; round++) {
		for (uint32_t i = 0; i < VALUES; i++)
			member->sums[i] = member->largest[i] = value_of(member->seat.rank, i);
		member->largest[7] = member->seat.rank == 1 ? NAN : 0;
		for (uint32_t i = 0; i < ROWS * WIDTH; i++)
			member->gathered[i] = i % WIDTH / EACH == member->seat.rank ? (float)i : -1;
		member->status = cpu_group_sum(&member->seat, member->sums, VALUES);
		if (!member->status)
			member->status = cpu_group_max(&member->seat, member->largest, VALUES);
		if (!member->status)
			member->status = cpu_group_gather(&member->seat, member->gathered, ROWS, WIDTH, EACH);
	}
	if (!member->rounds)
		cpu_group_break(member->seat.group);
	return NULL;
}

static void run_members(struct member members[MEMBERS], uint32_t rounds_of_last)
{
	struct cpu_group *group;
	pthread_t         threads[MEMBERS];
	struct error      error;

	ck_assert_int_eq(cpu_group_create(MEMBERS, &group, &error), STATUS_OK);
	for (uint32_t r = 0; r < MEMBERS; r++) {
		members[r].seat = (struct cpu_seat){ group, r, MEMBERS };
		members[r].status = STATUS_OK;
		members[r].rounds = r + 1 == MEMBERS ? rounds_of_last : ROUNDS;
		ck_assert_int_eq(pthread_create(&threads[r], NULL, meet_often, &members[r]), 0);
	}
	for (uint32_t r = 0; r < MEMBERS; r++)
		pthread_join(threads[r], NULL);
	cpu_group_destroy(group);
}

START_TEST(ranks_meet)
{
	struct member *members = calloc(MEMBERS, sizeof *members);

	ck_assert_ptr_nonnull(members);
	run_members(members, ROUNDS);
	for (uint32_t r = 0; r < MEMBERS; r++) {
		ck_assert_int_eq(members[r].status, STATUS_OK);
		for (uint32_t i = 0; i < VALUES; i++) {
			float sum = value_of(0, i) + value_of(1, i) + value_of(2, i);

			ck_assert(memcmp(&sum, &members[r].sums[i], sizeof sum) == 0);
			ck_assert(i == 7 ? isnan(members[r].largest[i]) : members[r].largest[i] == value_of(0, i));
		}
		for (uint32_t i = 0; i < ROWS * WIDTH; i++)
			ck_assert_float_eq(members[r].gathered[i], (float)i);
	}
	free(members);
}
END_TEST

START_TEST(a_rank_that_cannot_go_on)
{
	struct member *members = calloc(MEMBERS, sizeof *members);

	ck_assert_ptr_nonnull(members);
	run_members(members, 0);
	ck_assert(members[0].status == STATUS_UNAVAILABLE && members[1].status == STATUS_UNAVAILABLE);
	free(members);
}
END_TEST

/* ---- one product ---- */

enum { INPUTS = 288, OUTPUTS = 20, TOKENS = 3 };

/* y = W · round(x) by one rank, which has the columns from FIRST on. */
struct product {
	struct cpu_group *group;
	uint32_t          rank, first, columns;
	enum weight_input input;
	float             y[TOKENS * OUTPUTS];
};

static void *multiply(void *argument)
{
	struct product       *product = argument;
	static const int32_t  ids[TOKENS] = { 0 };
	struct backend_limits limits = { .rows = TOKENS, .logit_rows = 1, .vocab = OUTPUTS, .width = INPUTS,
	    .q_heads = 1, .head_dim = 2 };
	struct batch          batch = { .rows = TOKENS, .tokens = ids, .positions = ids };
	struct activation     x, y;
	struct backend       *b;
	struct backend_weight *w;
	struct error          error;
	int8_t                values[OUTPUTS * INPUTS];
	float                 scales[OUTPUTS];
	struct weight_desc    desc = { .name = "w", .format = WEIGHT_I8, .rows = OUTPUTS, .columns = product->columns, .data = values,
	    .bytes = sizeof values, .stored_rows = OUTPUTS, .stored_columns = INPUTS, .first_column = product->first,
	    .scales = { .data = scales, .bytes = sizeof scales, .type = WEIGHT_F32, .block_rows = 1, .row_blocks = OUTPUTS,
	        .column_blocks = 1 }, .input = product->input, .input_over_ranks = 1 };

	for (uint32_t i = 0; i < OUTPUTS * INPUTS; i++)
		values[i] = (int8_t)(i * 2654435761u >> 24);
	for (uint32_t n = 0; n < OUTPUTS; n++)
		scales[n] = 0.01f * (float)(n + 1);
	ck_assert_int_eq(cpu_backend_create_rank(1, CPU_ISA_BEST, product->group, product->rank, &b, &error), STATUS_OK);
	ck_assert_int_eq(b->ops->scratch_alloc(b, &limits, &error), STATUS_OK);
	ck_assert_int_eq(b->ops->weight_load(b, &desc, 1, &w, &error), STATUS_OK);
	ck_assert_int_eq(b->ops->activation_alloc(b, TOKENS, product->columns, &x), STATUS_OK);
	ck_assert_int_eq(b->ops->activation_alloc(b, TOKENS, OUTPUTS, &y), STATUS_OK);
	for (uint32_t t = 0; t < TOKENS; t++)
		for (uint32_t k = 0; k < product->columns; k++) /* the largest is among the first columns for one, not for others */
			((float *)x.data)[t * product->columns + k] = sinf((float)((product->first + k + 5) * (t + 1))) *
			    ((product->first + k) % 128 == t * 40 ? 9 : 1);
	ck_assert_int_eq(b->ops->step_begin(b, &batch), STATUS_OK);
	ck_assert_int_eq(b->ops->linear(b, w, NULL, &x, &y), STATUS_OK);
	ck_assert_int_eq(b->ops->all_reduce(b, &y), STATUS_OK);
	memcpy(product->y, y.data, sizeof product->y);
	b->ops->activation_free(b, &x);
	b->ops->activation_free(b, &y);
	b->ops->weight_free(b, w);
	b->ops->destroy(b);
	return NULL;
}

START_TEST(rounded_inputs_share_their_scale)
{
	static const enum weight_input inputs[] = { WEIGHT_INPUT_I8_TOKEN, WEIGHT_INPUT_F8_TOKEN, WEIGHT_INPUT_F8_GROUP };
	struct product whole = { .columns = INPUTS, .input = inputs[_i] }, parts[2];
	struct error   error;
	pthread_t      threads[2];

	multiply(&whole);
	parts[0] = (struct product){ .rank = 0, .first = 0, .columns = 160, .input = inputs[_i] }; /* through a group of 128 */
	parts[1] = (struct product){ .rank = 1, .first = 160, .columns = 128, .input = inputs[_i] };
	ck_assert_int_eq(cpu_group_create(2, &parts[0].group, &error), STATUS_OK);
	parts[1].group = parts[0].group;
	for (unsigned r = 0; r < 2; r++)
		ck_assert_int_eq(pthread_create(&threads[r], NULL, multiply, &parts[r]), 0);
	for (unsigned r = 0; r < 2; r++)
		pthread_join(threads[r], NULL);
	for (unsigned i = 0; i < TOKENS * OUTPUTS; i++) {
		ck_assert_float_eq(parts[0].y[i], parts[1].y[i]);
		ck_assert_float_eq_tol(parts[0].y[i], whole.y[i], 1e-4);
	}
	cpu_group_destroy(parts[0].group);
}
END_TEST

/* ---- whole models ---- */

enum { PROMPT = 70, WANTED = 3, VOCAB_MAX = 1024 };

static const struct {
	const char *name;
	uint32_t    ranks;
} models[] = {
	{ "dense/llama", 2 }, { "dense/llama-tied", 3 }, { "dense/llama-yarn", 4 },
	{ "dense/llama-dynamic", 3 }, { "dense/llama-gptq", 2 }, { "dense/llama-gptq", 4 },
	{ "dense/qwen2", 2 }, { "dense/qwen3", 4 }, { "dense/qwen3-fp8", 2 }, { "dense/qwen2-int8", 4 },
	{ "dense/glm", 2 }, { "dense/chatglm", 2 }, { "dense/chatglm", 4 }, { "dense/glm4", 2 },
	{ "dense/glm4-mixed", 2 }, { "dense/glm4-mixed", 4 },
	{ "moe/glm4_moe", 2 }, { "moe/glm4_moe-int4", 2 }, { "moe/glm4_moe-fused", 2 }, { "moe/glm4_moe_lite", 4 },
	{ "moe/deepseek_v3", 2 }, { "moe/glm_moe_dsa", 2 }, { "moe/glm_moe_dsa-pattern", 3 },
	{ "dense/bert", 2 }, { "dense/bert", 3 }, { "dense/xlm_roberta", 4 },
};

struct result {
	float    values[WANTED * VOCAB_MAX];
	uint32_t count;
};

static enum status compute(const char *name, uint32_t ranks, struct result *ret, struct error *error)
{
	static const uint32_t     wanted[WANTED] = { 0, 40, PROMPT - 1 };
	const char               *root = getenv("abs_top_srcdir");
	char                      path[512];
	struct tool_ranks_options options = { .path = path, .backend = "cpu", .dtype = "", .kernels = "", .threads = 1,
		.ranks = ranks };
	struct tool_ranks         loaded;
	struct tool_run           run;
	int32_t                   prompt[PROMPT];
	enum status               status;

	snprintf(path, sizeof path, "%s/tests/data/%s", root ? root : "..", name);
	status = tool_ranks_open(&options, &loaded, error);
	if (status)
		return status;
	ck_assert_msg(tool_run_open(&loaded, PROMPT, &run, error) == STATUS_OK, "%s", error->message);
	for (uint32_t i = 0; i < PROMPT; i++)
		prompt[i] = (int32_t)(3 + i * 2654435761u % 90);
	ret->count = run.info->encoder ? run.info->width : WANTED * run.info->vocab;
	ck_assert(ret->count <= WANTED * VOCAB_MAX);
	if (run.info->encoder)
		status = tool_run_embedding(&run, prompt, PROMPT, ret->values, error);
	else
		status = tool_run_logits(&run, prompt, 0, PROMPT, wanted, WANTED, ret->values, error);
	/* What the others would sample from is the same, bit by bit. */
	for (uint32_t rank = 1; rank < loaded.count && !run.info->encoder && !status; rank++) {
		struct backend *b = loaded.backends[rank].backend;
		float           last[VOCAB_MAX];

		ck_assert_int_eq(b->ops->read_logits(b, WANTED - 1, last, run.info->vocab), STATUS_OK);
		ck_assert(memcmp(last, ret->values + (size_t)(WANTED - 1) * run.info->vocab, run.info->vocab * sizeof *last) == 0);
	}
	tool_run_close(&run);
	tool_ranks_close(&loaded);
	return status;
}

START_TEST(ranks_agree_with_one)
{
	struct result *one = calloc(3, sizeof *one), *several = one + 1, *again = one + 2;
	struct error   error;
	float          largest = 0, difference = 0;

	ck_assert_ptr_nonnull(one);
	ck_assert_msg(!compute(models[_i].name, 1, one, &error), "%s", error.message);
	for (unsigned i = 0; i < 2; i++)
		ck_assert_msg(!compute(models[_i].name, models[_i].ranks, i ? again : several, &error), "%s: %s",
		    models[_i].name, error.message);
	for (uint32_t i = 0; i < one->count; i++) {
		largest = fmaxf(largest, fabsf(one->values[i]));
		difference = fmaxf(difference, fabsf(one->values[i] - several->values[i]));
	}
	ck_assert_msg(difference <= 1e-5f * largest, "%s on %u ranks: %g of %g", models[_i].name,
	    models[_i].ranks, (double)difference, (double)largest);
	ck_assert(memcmp(several->values, again->values, one->count * sizeof *one->values) == 0);
	free(one);
}
END_TEST

START_TEST(refusals_name_tensor_and_ranks)
{
	struct result *result = calloc(1, sizeof *result);
	struct error   error;

	ck_assert_ptr_nonnull(result);
	ck_assert_int_eq(compute("dense/llama", 3, result, &error), STATUS_UNSUPPORTED);
	ck_assert_ptr_nonnull(strstr(error.message, "4 heads over 2 KV heads cannot be shared out to 3 ranks"));
	ck_assert_int_eq(compute("tiny.gguf", 2, result, &error), STATUS_UNSUPPORTED);
	ck_assert_str_eq(error.message, "tensor blk.0.ffn_down.weight: 256 columns in blocks of 256 cannot be shared out to 2 ranks");
	ck_assert_int_eq(compute("dense/llama", CPU_RANKS_MAX + 1, result, &error), STATUS_LIMIT);
	free(result);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("ranks");
	TCase   *sizes = tcase_create("sizes"), *meetings = tcase_create("meetings"), *whole = tcase_create("models");
	SRunner *runner;
	int      failed;

	fake_ops.all_reduce = fake_reduce;
	tcase_add_loop_test(sizes, parts_are_the_whole, 0, sizeof good / sizeof good[0]);
	tcase_add_loop_test(sizes, what_cannot_be_cut, 0, sizeof bad / sizeof bad[0]);
	tcase_add_test(sizes, a_backend_that_is_always_alone);
	tcase_add_test(meetings, ranks_meet);
	tcase_add_test(meetings, a_rank_that_cannot_go_on);
	tcase_add_loop_test(meetings, rounded_inputs_share_their_scale, 0, 3);
	tcase_add_loop_test(whole, ranks_agree_with_one, 0, sizeof models / sizeof models[0]);
	tcase_add_test(whole, refusals_name_tensor_and_ranks);
	tcase_set_timeout(meetings, 60);
	tcase_set_timeout(whole, 60);
	suite_add_tcase(suite, sizes);
	suite_add_tcase(suite, meetings);
	suite_add_tcase(suite, whole);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
