/* Unit tests of the architectures on the small checkpoints in tests/data/dense: a row's logits have the same bits however a
 * prompt is cut into steps, wherever its blocks lie, whatever else is in the batch, with one thread or three; and an
 * encoder's embedding does not depend on its neighbours.  That the bits are right is tests/behaviour/test_checkpoint.py's. */
#include "support/small_models.h"

#include <check.h>
#include <stdlib.h>

/* One of every architecture and every kind of stored weights. */
static const char *const names[] = { "dense/llama", "dense/llama-tied", "dense/llama-yarn", "dense/llama-gptq",
	"dense/qwen2", "dense/qwen2-int8", "dense/qwen3", "dense/qwen3-fp8", "dense/chatglm", "dense/glm4", "dense/glm4-mixed" };
enum { NAMES = sizeof names / sizeof names[0] };
static const enum cpu_isa isas[] = { CPU_ISA_GENERIC, CPU_ISA_AVX2, CPU_ISA_AVX512 }; /* each has the ones before it */

START_TEST(pieces_blocks_threads) { small_model_check_pieces(names[_i % NAMES], isas[_i / NAMES]); }
END_TEST

START_TEST(batch_of_eight) { small_model_check_batch(names[_i % NAMES], isas[_i / NAMES]); }
END_TEST

/* Two texts in one step of an encoder, each seen whole, give what each gives alone. */
START_TEST(encoder_batch)
{
	struct runner_options options = { .threads = 2, .isa = isas[_i / 2], .max_rows = PROMPT,
		.block_size = 64, .sequences = 2, .max_context = 256 };
	const char           *name = _i % 2 ? "dense/bert" : "dense/xlm_roberta";
	struct runner        *runner = small_model_open(name, 0, &options);
	int32_t               text[PROMPT];
	float                 alone[2][48], together[48];
	struct runner_piece   pieces[2] = { { 0, text, 40, 40 }, { 1, text + 40, 100, 100 } };

	small_model_prompt(text, 7);
	ck_assert(runner->info->encoder && runner->info->width == 48);
	for (uint32_t s = 0; s < 2; s++) {
		ck_assert_int_eq(runner_step(runner, &pieces[s], 1), STATUS_OK);
		ck_assert_int_eq(runner->backend->ops->read_pooled(runner->backend, 0, alone[s], 48), STATUS_OK);
		runner_reset(runner, s);
	}
	ck_assert_int_eq(runner_step(runner, pieces, 2), STATUS_OK);
	for (uint32_t s = 0; s < 2; s++) {
		ck_assert_int_eq(runner->backend->ops->read_pooled(runner->backend, s ? 40 : 0, together, 48), STATUS_OK);
		ck_assert_mem_eq(together, alone[s], sizeof together);
	}
	ck_assert_int_eq(runner->backend->ops->read_pooled(runner->backend, 0, together, 47), STATUS_INVALID);
	small_model_close(runner);
}
END_TEST

/* A padding token takes no position where the model says so. */
START_TEST(positions_skip_padding)
{
	static const int32_t  tokens[] = { 0, 5, 1, 1, 6, 2 }, skipped[] = { 0, 1, -1, -1, 2, 3 }, plain[] = { 0, 1, 2, 3, 4, 5 };
	struct runner_options options = { .threads = 1, .isa = CPU_ISA_GENERIC, .max_rows = 8, .block_size = 16, .sequences = 1,
		.max_context = 16 };
	struct runner        *runner = small_model_open("dense/xlm_roberta", 0, &options);
	int32_t               positions[6];

	model_positions(runner->model, tokens, 6, positions);
	ck_assert_mem_eq(positions, skipped, sizeof positions);
	ck_assert_uint_eq(runner->info->max_context, 320 - 2);
	small_model_close(runner);
	runner = small_model_open("dense/bert", 0, &options);
	model_positions(runner->model, tokens, 6, positions);
	ck_assert_mem_eq(positions, plain, sizeof positions);
	small_model_close(runner);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("dense");
	TCase   *tcase = tcase_create("dense");
	SRunner *runner = srunner_create(suite);
	int      failed, sets = 1;

	while (sets < 3 && cpu_isa_available(isas[sets]))
		sets++;
	tcase_set_timeout(tcase, 120);
	tcase_add_loop_test(tcase, pieces_blocks_threads, 0, sets * NAMES);
	tcase_add_loop_test(tcase, batch_of_eight, 0, sets * NAMES);
	tcase_add_loop_test(tcase, encoder_batch, 0, sets * 2);
	tcase_add_test(tcase, positions_skip_padding);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
