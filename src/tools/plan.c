/* plan.c: `penstock plan`: what a machine's memory holds beside a model's weights: the same arithmetic as the start of the
 * daemon does, without loading anything.  Sizes are those of the backend that would run it; where that cannot be asked
 * (a CUDA backend without a device), they are an estimate, and the output says so. */
#include "cpu/cpu_backend.h"
#include "model/model.h"
#include "model/weight.h"
#include "tools/backend.h"
#include "tools/dry.h"
#include "tools/tool.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

static const char help[] =
    "usage: penstock plan DIR|FILE --memory SIZE [OPTION…]\n"
    "\n"
    "Shows what fits into SIZE (80G, 512M) beside the weights of a model: tokens of KV cache, the longest context, how many\n"
    "sequences of which length at once.  Exit status 1 when the model does not fit.\n"
    "\n"
    "  --backend NAME     cpu (default), cuda\n"
    "  --kernels K        kernels of the backend cuda, which decide what weights take: auto (default), library, own, portable\n"
    "  --context N        the longest sequence to serve (default: the model's)\n"
    "  --max-running N    sequences in one batch (default 16)\n"
    "  --step-tokens N    tokens of one step (default 256)\n"
    "  --block-size N     tokens of a KV block: 16, 32 or 64 (default)\n"
    "  --kv-dtype T       what keys and values are kept in: auto (default), fp8, int8\n"
    "  --share S          of what weights and scratch leave, to the KV cache (default 0.9)\n"
    "  --backend-dir DIR  where loadable backends are\n";

struct job {
	const char *path, *backend, *kernels, *backend_dir, *kv_dtype;
	uint64_t    memory;
	int64_t     context, max_running, step_tokens, block_size;
	double      share;
};

/* The matrix that makes logits, as it is stored. */
struct head {
	enum weight_format format;
	uint64_t           bytes;
	enum { HEAD_NONE, HEAD_EMBEDDING, HEAD_OWN } kind;
};

struct plan {
	struct head head;
	uint64_t weights, scratch, block, room, blocks, tokens; /* bytes; block: of one KV block of all groups; room: for KV */
	uint32_t context; /* longest */
	bool     estimate;
};

static enum status see_weight(void *context, const struct weight_desc *parts, uint32_t count, struct error *error)
{
	static const struct {
		const char *word;
		int         kind;
	} words[] = { { "lm_head.", HEAD_OWN }, { "output_layer.", HEAD_OWN }, { "output.weight", HEAD_OWN }, { "embed_tokens.",
		HEAD_EMBEDDING }, { "token_embd.", HEAD_EMBEDDING }, { "word_embeddings.", HEAD_EMBEDDING } };
	struct head *head = context;

	(void)error;
	for (size_t i = 0; i < sizeof words / sizeof *words && count == 1 && parts[0].rows > 1; i++) {
		const char *at = strstr(parts[0].name, words[i].word);

		if (at && (at == parts[0].name || at[-1] == '.') && words[i].kind > (int)head->kind)
			*head = (struct head){ parts[0].format, parts[0].bytes + parts[0].scales.bytes + parts[0].zeros.bytes, words[i].kind };
	}
	return STATUS_OK;
}

/* Where the backend cannot be asked: weights as stored, 16 bits a KV value, unless it has 8, and an activation, 32 a logit. */
static void estimate(const struct model_info *info, const struct dry_count *counts, const struct job *job, struct plan *plan)
{
	uint64_t rows = (uint64_t)job->step_tokens, token = 0;

	plan->estimate = true;
	plan->weights = 0;
	for (unsigned format = 0; format < WEIGHT_FORMAT_COUNT; format++)
		plan->weights += counts[format].bytes;
	for (uint32_t g = 0; g < info->kv_group_count; g++) {
		uint64_t values = kv_group_values(&info->kv_groups[g]);

		token += info->kv_groups[g].type == KV_FLOAT ? 2 * values : values + values / info->kv_groups[g].head_dim * sizeof(float);
	}
	plan->block = token * (uint64_t)job->block_size;
	/* A dozen activations as wide as the model cover a layer's inputs and outputs. */
	plan->scratch = rows * info->width * 2 * 12 + (uint64_t)job->max_running * info->vocab * 4;
}

static enum status measure(const struct model *model, const struct backend *dry, const struct job *job, struct plan *plan,
    struct error *error)
{
	const struct model_info *info = model_info(model);

	plan->weights = info->weight_bytes;
	plan->scratch = model_scratch_bytes(model, (uint32_t)job->step_tokens, (uint32_t)job->max_running);
	for (uint32_t g = 0; g < info->kv_group_count; g++) {
		struct kv_group_desc group = info->kv_groups[g];

		group.block_size = (uint32_t)job->block_size;
		plan->block += dry->ops->kv_bytes(dry, &group);
	}
	if (plan->scratch == UINT64_MAX)
		return error_set(error, STATUS_LIMIT, "a step of %lld tokens of this model is larger than the backend computes",
		    (long long)job->step_tokens);
	return STATUS_OK;
}

static void share_out(const struct model_info *info, const struct job *job, struct plan *plan)
{
	uint64_t taken = plan->weights + plan->scratch;

	plan->context = job->context ? (uint32_t)job->context : info->max_context;
	plan->room = taken < job->memory && plan->block ? (uint64_t)((double)(job->memory - taken) * job->share) : 0;
	plan->blocks = plan->block ? plan->room / plan->block : 0;
	plan->tokens = plan->blocks * (uint64_t)job->block_size;
	if (plan->context > plan->tokens)
		plan->context = (uint32_t)plan->tokens;
}

static void print_batches(const struct job *job, const struct plan *plan)
{
	uint64_t size = (uint64_t)job->block_size;

	for (uint64_t length = 1024; plan->context; length *= 4) {
		uint64_t own = length < plan->context ? length : plan->context, fit = plan->blocks / ((own + size - 1) / size);

		printf("at once       %llu sequences of %llu tokens%s\n", (unsigned long long)fit, (unsigned long long)own,
		    fit > (uint64_t)job->max_running ? ", more than --max-running" : "");
		if (own == plan->context)
			break;
	}
}

static bool print_plan(const struct model_info *info, const struct job *job, const struct plan *plan)
{
	uint64_t taken = plan->weights + plan->scratch;
	char     size[DRY_SIZE_MAX];

	printf("memory        %s\n", dry_size(size, job->memory));
	printf("weights       %s%s\n", dry_size(size, plan->weights), plan->estimate ? " (estimate: as stored)" : "");
	if (plan->head.kind != HEAD_NONE && !info->encoder)
		printf("head          %s in the file, %s%s\n", weight_format_name(plan->head.format), dry_size(size, plan->head.bytes),
		    plan->head.kind == HEAD_EMBEDDING ? ": the embedding is used for it" : "");
	printf("scratch       %s%s for steps of %lld tokens and %lld sequences\n", dry_size(size, plan->scratch),
	    plan->estimate ? " (estimate)" : "", (long long)job->step_tokens, (long long)job->max_running);
	if (info->encoder) {
		printf("KV cache      none between texts\ncontext       %u tokens\n", info->max_context);
		return taken <= job->memory;
	}
	if (taken > job->memory || plan->blocks == 0) {
		printf("does not fit  %s more is needed for weights, scratch and one KV block of %llu bytes\n",
		    dry_size(size, taken + plan->block > job->memory ? taken + plan->block - job->memory : plan->block),
		    (unsigned long long)plan->block);
		return false;
	}
	printf("KV cache      %s, %.2f of what is left: %llu tokens of %llu bytes%s\n", dry_size(size, plan->blocks * plan->block),
	    job->share, (unsigned long long)plan->tokens, (unsigned long long)(plan->block / (uint64_t)job->block_size),
	    !plan->estimate ? "" : strcmp(job->kv_dtype, "auto") == 0 ? " (estimate: 16 bits)" : " (estimate)");
	printf("context       %u tokens at most, the model's is %u\n", plan->context, info->max_context);
	print_batches(job, plan);
	return true;
}

static enum status make_plan(const struct job *job, bool *ret_fits, struct error *error)
{
	struct model_source source = { .checkpoint = NULL };
	struct tool_backend backend = { .backend = NULL };
	struct backend     *dry = NULL;
	struct model       *model = NULL;
	struct plan         plan = { 0 };
	bool                there = true;
	enum status         status = model_source_open(job->path, &source, error);

	if (status)
		return status;
	status = tool_backend_open(job->backend, tool_backend_dtype(job->backend, "", &source), job->kernels, job->backend_dir, 1,
	    &backend, error);
	if (status && strcmp(job->backend, "cuda") == 0) {
		printf("no cuda here  %s\n", error->message);
		there = false;
		status = tool_backend_open("cpu", "", "", NULL, 1, &backend, error); /* it can count, too */
	}
	if (!status)
		status = dry_create(backend.backend, &dry, error);
	if (!status)
		dry_watch(dry, see_weight, &plan.head);
	if (!status)
		status = model_load(&source, dry, &model, error);
	if (!status)
		status = model_set_kv_type(model, job->kv_dtype, error);
	if (!status && job->context > model_info(model)->max_context)
		status = error_set(error, STATUS_CONTEXT_LENGTH, "--context %lld: the model was trained for %u tokens",
		    (long long)job->context, model_info(model)->max_context);
	if (!status && there)
		status = measure(model, dry, job, &plan, error);
	else if (!status)
		estimate(model_info(model), dry_counts(dry), job, &plan);
	if (!status && strcmp(job->backend, "cuda") == 0)
		printf("arithmetic    %s float16\n", *model_source_dtype(&source) ? "float16, because config.json says" :
		    "bfloat16, because no config.json says");
	if (!status) {
		share_out(model_info(model), job, &plan);
		*ret_fits = print_plan(model_info(model), job, &plan);
	}
	model_free(model);
	if (dry)
		dry->ops->destroy(dry);
	tool_backend_close(&backend);
	model_source_close(&source);
	return status;
}

enum { OPTION_MEMORY = 256, OPTION_BACKEND, OPTION_CONTEXT, OPTION_MAX_RUNNING, OPTION_STEP_TOKENS, OPTION_BLOCK_SIZE,
    OPTION_SHARE, OPTION_KV_DTYPE, OPTION_BACKEND_DIR, OPTION_KERNELS };

/* One option's value into *JOB; false after it complained. */
static bool set_option(int option, const char *text, struct job *job)
{
	static const char *const kernels[] = { "auto", "library", "own", "portable" };

	switch (option) {
	case OPTION_MEMORY:
		return tool_size("plan", "--memory", text, &job->memory);
	case OPTION_CONTEXT:
		return tool_int("plan", "--context", text, 1, INT32_MAX, &job->context);
	case OPTION_MAX_RUNNING:
		return tool_int("plan", "--max-running", text, 1, 4096, &job->max_running);
	case OPTION_STEP_TOKENS:
		return tool_int("plan", "--step-tokens", text, 1, 65536, &job->step_tokens);
	case OPTION_BLOCK_SIZE:
		if (!tool_int("plan", "--block-size", text, 16, 64, &job->block_size))
			return false;
		if (job->block_size == 16 || job->block_size == 32 || job->block_size == 64)
			return true;
		tool_usage("plan", "--block-size %s: 16, 32 or 64 is needed", text);
		return false;
	case OPTION_SHARE:
		return tool_real("plan", "--share", text, 0.01, 1, &job->share);
	case OPTION_BACKEND:
		job->backend = text;
		return true;
	case OPTION_KV_DTYPE:
		job->kv_dtype = text;
		return true;
	case OPTION_BACKEND_DIR:
		job->backend_dir = text;
		return true;
	case OPTION_KERNELS: /* where there is no device, no backend looks at it */
		for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
			if (strcmp(text, kernels[i]) == 0) {
				job->kernels = text;
				return true;
			}
		tool_usage("plan", "--kernels %s: auto, library, own or portable is needed", text);
		return false;
	}
	return false;
}

int tool_plan(int argc, char **argv)
{
	static const struct option options[] = {
		{ "memory", required_argument, NULL, OPTION_MEMORY },
		{ "backend", required_argument, NULL, OPTION_BACKEND },
		{ "context", required_argument, NULL, OPTION_CONTEXT },
		{ "max-running", required_argument, NULL, OPTION_MAX_RUNNING },
		{ "step-tokens", required_argument, NULL, OPTION_STEP_TOKENS },
		{ "block-size", required_argument, NULL, OPTION_BLOCK_SIZE },
		{ "share", required_argument, NULL, OPTION_SHARE },
		{ "kv-dtype", required_argument, NULL, OPTION_KV_DTYPE },
		{ "backend-dir", required_argument, NULL, OPTION_BACKEND_DIR },
		{ "kernels", required_argument, NULL, OPTION_KERNELS },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	struct job   job = { .backend = "cpu", .kernels = "", .kv_dtype = "auto", .max_running = 16, .step_tokens = 256,
	    .block_size = 64, .share = 0.9 };
	struct error error;
	bool         fits = false;
	int          c;

	while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		if (c == 'h') {
			fputs(help, stdout);
			return TOOL_OK;
		}
		if (c == '?')
			return tool_usage("plan", "wrong option");
		if (!set_option(c, optarg, &job))
			return TOOL_USAGE;
	}
	if (optind + 1 != argc)
		return tool_usage("plan", "one directory or file is needed");
	if (!job.memory)
		return tool_usage("plan", "--memory SIZE is needed");
	job.path = argv[optind];
	if (make_plan(&job, &fits, &error))
		return tool_fail("plan", &error);
	return fits ? TOOL_OK : TOOL_FAILED;
}
