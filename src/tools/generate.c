/* generate.c: `penstock generate`: the engine in this process, without daemons, lanes or HTTP: the proof that a model file
 * works, and the quickest way to look at one.  One request, the same engine and backend as penstockd's; text goes to
 * standard output as it comes, everything else to standard error. */
#include "base/clock.h"
#include "cpu/cpu_backend.h"
#include "engine/engine.h"
#include "engine/speculate.h"
#include "model/model.h"
#include "tools/backend.h"
#include "tools/text.h"
#include "tools/tool.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_SIZE = 64, STEP_TOKENS = 256, NGRAM_LEAST = 3, NGRAM_MOST = 8 };

static const char help[] =
    "usage: penstock generate --model FILE (--chat TEXT | --prompt TEXT | --ids ID,ID,…) [OPTION…]\n"
    "\n"
    "  --chat TEXT        a user's message, rendered with the model's chat template\n"
    "  --prompt TEXT      text to go on with\n"
    "  --ids ID,ID,…      token ids to go on with\n"
    "  --max-tokens N     tokens to write at most (default 128)\n"
    "  --temperature T    0 = the likeliest token always (default)\n"
    "  --top-k N, --top-p P, --min-p P, --seed S\n"
    "  --ignore-eos       do not stop where the model ends its answer\n"
    "  --speculation WORD off (default), ngram, mtp, auto: guesses at further tokens; the answer is the same\n"
    "  --draft-tokens N   guesses checked in one step at most (default 7)\n"
    "  --backend NAME     cpu (default), cuda\n"
    "  --dtype T          arithmetic of the backend: float32, bfloat16, float16 (default: its own)\n"
    "  --kernels K        kernels of the backend cuda: auto (default), library, own, portable\n"
    "  --backend-dir DIR  where loadable backends are\n"
    "  --threads N        threads of the CPU backend (default: one per core this process may use)\n"
    "  --print-ids        print the ids instead of the text, separated by commas\n"
    "  --quiet            no figures on standard error\n";

struct job {
	const char          *model, *chat, *prompt, *ids;
	const char          *backend, *dtype, *kernels, *backend_dir;
	int64_t              max_tokens, threads, draft_tokens;
	enum engine_speculation speculation;
	bool                 ignore_eos, print_ids, quiet;
	struct sample_params sampling;
};

/* The sink's state: prints tokens as they come. */
struct printer {
	struct detokenizer detokenizer;
	struct buf         text;
	bool               print_ids, ended;
	uint64_t           count, first_ns, last_ns, steps;
	struct metrics     metrics;
	struct engine_end  end;
	enum status        status; /* of printing */
};

static enum engine_control sink_control(void *context, uint64_t tag, uint32_t choice, uint32_t *ret_keep)
{
	(void)context, (void)tag, (void)choice, (void)ret_keep;
	return ENGINE_CONTROL_NONE;
}

static bool sink_may_publish(void *context, uint64_t tag, uint32_t events)
{
	(void)context, (void)tag, (void)events;
	return true;
}

static void flush_text(struct printer *printer)
{
	if (printer->text.len)
		fwrite(printer->text.data, 1, printer->text.len, stdout);
	fflush(stdout);
	buf_clear(&printer->text);
}

static void sink_token(void *context, uint64_t tag, uint32_t choice, uint32_t seq, int32_t id,
    const struct sample_logprobs *logprobs)
{
	struct printer *printer = context;

	(void)tag, (void)choice, (void)seq, (void)logprobs;
	printer->last_ns = clock_now_ns();
	if (printer->count++ == 0)
		printer->first_ns = printer->last_ns;
	if (printer->print_ids) {
		printf("%s%d", printer->count > 1 ? "," : "", id);
		return;
	}
	if (!printer->status)
		printer->status = detokenizer_push(&printer->detokenizer, id, &printer->text);
	flush_text(printer);
}

static void sink_end(void *context, uint64_t tag, uint32_t seq, const struct engine_end *end)
{
	struct printer *printer = context;

	(void)tag, (void)seq;
	if (!printer->print_ids && !printer->status)
		printer->status = detokenizer_finish(&printer->detokenizer, &printer->text);
	flush_text(printer);
	printf("\n");
	printer->end = *end;
	printer->ended = true;
}

static enum status parse_ids(const char *text, struct token_list *ret, struct error *error)
{
	struct token_list list = { NULL, 0, 0 };
	size_t            room = 1;

	for (const char *c = text; *c; c++)
		room += *c == ',';
	if (room > WIRE_PROMPT_TOKENS_MAX)
		return error_set(error, STATUS_LIMIT, "--ids: %zu ids, at most %d are allowed", room, WIRE_PROMPT_TOKENS_MAX);
	list.ids = calloc(room, sizeof *list.ids);
	if (!list.ids)
		return error_set(error, STATUS_NOMEM, "out of memory");
	list.capacity = room;
	for (const char *c = text;; c++) {
		char     *end;
		long long id;

		errno = 0;
		id = strtoll(c, &end, 10);
		if (end == c || errno || id < 0 || id > INT32_MAX || (*end && *end != ',')) {
			token_list_free(&list);
			return error_set(error, STATUS_INVALID, "--ids: not a list of ids separated by commas at \"%.20s\"", c);
		}
		list.ids[list.count++] = (int32_t)id;
		if (!*end)
			break;
		c = end;
	}
	*ret = list;
	return STATUS_OK;
}

static enum status make_prompt(const struct job *job, const struct tool_text *text, struct token_list *ret, struct error *error)
{
	if (job->chat) {
		json_t     *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", job->chat);
		enum status status = messages ? tool_text_encode_chat(text, messages, ret, error)
		                              : error_set(error, STATUS_INVALID, "--chat: the text is not UTF-8");

		json_decref(messages);
		return status;
	}
	if (job->prompt)
		return tool_text_encode(text, job->prompt, strlen(job->prompt), false, true, ret, error);
	return parse_ids(job->ids, ret, error);
}

/* Steps until the request has ended. */
static enum status run_engine(struct engine *engine, struct printer *printer, struct error *error)
{
	while (!printer->ended) {
		struct engine_step_stats stats;
		enum status              status = engine_step(engine, clock_now_ns(), &stats, error);

		printer->steps++;
		if (status == STATUS_AGAIN)
			return error_set(error, STATUS_INTERNAL, "the engine has nothing to do, but the request has not ended");
		if (status)
			return status;
	}
	if (printer->status)
		return error_set(error, printer->status, "cannot turn ids into text: %s", status_text(printer->status));
	if (printer->end.finish == WIRE_FINISH_ERROR)
		return error_set(error, printer->end.status, "the request failed: %s", status_text(printer->end.status));
	return STATUS_OK;
}

static void print_figures(const struct printer *printer, struct backend *backend, uint64_t loaded_ns, uint64_t submitted_ns,
    uint64_t begun_ns, bool drafts)
{
	double prefill = (double)(printer->first_ns - submitted_ns) / 1e9;
	double decode = (double)(printer->last_ns - printer->first_ns) / 1e9;

	fprintf(stderr, "%s, loaded in %.2f s\n", backend->ops->describe(backend), (double)(loaded_ns - begun_ns) / 1e9);
	fprintf(stderr, "prompt: %u tokens in %.3f s", printer->end.prompt_tokens, prefill);
	if (printer->count && prefill > 0)
		fprintf(stderr, " (%.1f tokens/s)", printer->end.prompt_tokens / prefill);
	fprintf(stderr, "; answer: %u tokens in %.3f s", printer->end.completion_tokens, decode);
	if (printer->count > 1 && decode > 0)
		fprintf(stderr, " (%.1f tokens/s)", (double)(printer->count - 1) / decode);
	fprintf(stderr, "; ended by %s\n", printer->end.finish == WIRE_FINISH_LENGTH ? "length" : "stop");
	if (drafts) {
		fprintf(stderr, "%llu steps; %llu guesses checked, right by place:", (unsigned long long)printer->steps,
		    (unsigned long long)(metrics_get(&printer->metrics, METRIC_ngram_draft_tokens) +
		        metrics_get(&printer->metrics, METRIC_mtp_draft_tokens)));
		for (int i = 0; i < SPECULATE_MOST; i++)
			fprintf(stderr, " %llu",
			    (unsigned long long)(metrics_get(&printer->metrics, (enum metric)(METRIC_ngram_accepted_1 + i)) +
			        metrics_get(&printer->metrics, (enum metric)(METRIC_mtp_accepted_1 + i))));
		fprintf(stderr, "\n");
	}
}

static enum status generate(const struct job *job, struct error *error)
{
	struct tool_text       text;
	struct token_list      prompt = { NULL, 0, 0 };
	struct tool_backend    opened = { NULL, NULL };
	struct backend        *backend = NULL;
	struct model_source    source = { .checkpoint = NULL };
	struct model          *model = NULL;
	struct engine         *engine = NULL;
	struct printer         printer = { .print_ids = job->print_ids };
	struct engine_sink     sink = { &printer, sink_control, sink_may_publish, sink_token, sink_end, NULL, NULL };
	struct engine_options  options = { .max_running = 1, .step_tokens = STEP_TOKENS, .block_size = BLOCK_SIZE, .cache_share = 0.5 };
	struct engine_request  request = { .id = 1, .max_tokens = (uint32_t)job->max_tokens, .ignore_eos = job->ignore_eos };
	uint64_t               begun = clock_now_ns(), loaded, submitted;
	enum status            status;

	status = tool_text_open(job->model, job->chat != NULL, &text, error);
	if (status)
		return status;
	buf_init(&printer.text, VOCAB_TOKEN_MAX * 4);
	printer.metrics.shared = calloc(1, sizeof *printer.metrics.shared);
	if (!printer.metrics.shared) {
		status = error_set(error, STATUS_NOMEM, "out of memory");
		goto fail;
	}
	detokenizer_init(&printer.detokenizer, text.vocab);
	status = make_prompt(job, &text, &prompt, error);
	if (status)
		goto fail;
	status = model_source_open(job->model, &source, error);
	if (!status)
		status = tool_backend_open(job->backend, tool_backend_dtype(job->backend, job->dtype, &source), job->kernels,
		    job->backend_dir, (unsigned)job->threads, &opened, error);
	if (status)
		goto fail;
	backend = opened.backend;
	source.skip_draft = job->speculation != ENGINE_SPECULATION_MTP && job->speculation != ENGINE_SPECULATION_AUTO;
	if (!status)
		status = model_load(&source, backend, &model, error);
	if (status)
		goto fail;
	options.max_waiting = 1;
	options.speculation = job->speculation;
	options.draft_tokens = (uint32_t)job->draft_tokens;
	options.ngram_least = NGRAM_LEAST;
	options.ngram_most = NGRAM_MOST;
	options.vocab_limit = vocab_size(text.vocab);
	options.eos = vocab_eos(text.vocab, &options.eos_count);
	options.slow_client_timeout_ns = options.max_queue_wait_ns = 86400 * CLOCK_NS_PER_S;
	/* Room for this one request; what does not fit the model's context is refused by engine_submit in its own words. */
	options.kv_tokens = prompt.count + (uint64_t)job->max_tokens + BLOCK_SIZE;
	if (options.kv_tokens > (uint64_t)model_info(model)->max_context + BLOCK_SIZE)
		options.kv_tokens = (uint64_t)model_info(model)->max_context + BLOCK_SIZE;
	status = engine_create(model, backend, &options, &sink, &printer.metrics, &engine, NULL, error);
	if (status)
		goto fail;
	request.prompt = prompt.ids;
	request.prompt_tokens = (uint32_t)prompt.count;
	request.sampling = job->sampling;
	prompt.ids = NULL; /* the engine's from here on */
	loaded = submitted = clock_now_ns();
	status = engine_submit(engine, &request, submitted, error);
	if (!status)
		status = run_engine(engine, &printer, error);
	if (!status && !job->quiet)
		print_figures(&printer, backend, loaded, submitted, begun, options.speculation != ENGINE_SPECULATION_OFF);
fail:
	engine_destroy(engine);
	model_free(model);
	tool_backend_close(&opened);
	free(prompt.ids);
	buf_free(&printer.text);
	free(printer.metrics.shared);
	model_source_close(&source);
	tool_text_close(&text);
	return status;
}

enum {
	OPTION_CHAT = 256,
	OPTION_PROMPT,
	OPTION_IDS,
	OPTION_MAX_TOKENS,
	OPTION_TEMPERATURE,
	OPTION_TOP_K,
	OPTION_TOP_P,
	OPTION_MIN_P,
	OPTION_SEED,
	OPTION_THREADS,
	OPTION_BACKEND,
	OPTION_DTYPE,
	OPTION_KERNELS,
	OPTION_BACKEND_DIR,
	OPTION_IGNORE_EOS,
	OPTION_SPECULATION,
	OPTION_DRAFT_TOKENS,
	OPTION_PRINT_IDS,
	OPTION_QUIET
};

/* One option's value into *JOB; false after it complained. */
static bool set_option(int option, const char *text, struct job *job)
{
	int64_t whole;
	double  real;

	switch (option) {
	case OPTION_MAX_TOKENS:
		return tool_int("generate", "--max-tokens", text, 1, WIRE_PROMPT_TOKENS_MAX, &job->max_tokens);
	case OPTION_THREADS:
		return tool_int("generate", "--threads", text, 0, CPU_THREADS_MAX, &job->threads);
	case OPTION_TEMPERATURE:
		if (!tool_real("generate", "--temperature", text, 0, 100, &real))
			return false;
		job->sampling.temperature = (float)real;
		return true;
	case OPTION_TOP_P:
		if (!tool_real("generate", "--top-p", text, 1e-6, 1, &real))
			return false;
		job->sampling.top_p = (float)real;
		return true;
	case OPTION_MIN_P:
		if (!tool_real("generate", "--min-p", text, 0, 1, &real))
			return false;
		job->sampling.min_p = (float)real;
		return true;
	case OPTION_DRAFT_TOKENS:
		return tool_int("generate", "--draft-tokens", text, 1, SPECULATE_MOST, &job->draft_tokens);
	case OPTION_SPECULATION:
		if (!engine_speculation_parse(text, &job->speculation)) {
			tool_usage("generate", "--speculation is off, ngram, mtp or auto, not %s", text);
			return false;
		}
		return true;
	case OPTION_TOP_K:
		if (!tool_int("generate", "--top-k", text, 0, INT32_MAX, &whole))
			return false;
		job->sampling.top_k = (int32_t)whole;
		return true;
	case OPTION_SEED:
		if (!tool_int("generate", "--seed", text, 0, INT64_MAX, &whole))
			return false;
		job->sampling.seed = (uint64_t)whole;
		return true;
	}
	return false;
}

int tool_generate(int argc, char **argv)
{
	static const struct option options[] = {
		{ "model", required_argument, NULL, 'm' },
		{ "chat", required_argument, NULL, OPTION_CHAT },
		{ "prompt", required_argument, NULL, OPTION_PROMPT },
		{ "ids", required_argument, NULL, OPTION_IDS },
		{ "max-tokens", required_argument, NULL, OPTION_MAX_TOKENS },
		{ "temperature", required_argument, NULL, OPTION_TEMPERATURE },
		{ "top-k", required_argument, NULL, OPTION_TOP_K },
		{ "top-p", required_argument, NULL, OPTION_TOP_P },
		{ "min-p", required_argument, NULL, OPTION_MIN_P },
		{ "seed", required_argument, NULL, OPTION_SEED },
		{ "threads", required_argument, NULL, OPTION_THREADS },
		{ "backend", required_argument, NULL, OPTION_BACKEND },
		{ "dtype", required_argument, NULL, OPTION_DTYPE },
		{ "kernels", required_argument, NULL, OPTION_KERNELS },
		{ "backend-dir", required_argument, NULL, OPTION_BACKEND_DIR },
		{ "speculation", required_argument, NULL, OPTION_SPECULATION },
		{ "draft-tokens", required_argument, NULL, OPTION_DRAFT_TOKENS },
		{ "ignore-eos", no_argument, NULL, OPTION_IGNORE_EOS },
		{ "print-ids", no_argument, NULL, OPTION_PRINT_IDS },
		{ "quiet", no_argument, NULL, OPTION_QUIET },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	struct job   job = { .backend = "cpu", .dtype = "", .kernels = "", .max_tokens = 128, .draft_tokens = SPECULATE_MOST,
		.sampling = { .top_p = 1 } };
	struct error error;
	int          c;

	while ((c = getopt_long(argc, argv, "m:h", options, NULL)) != -1) {
		switch (c) {
		case 'm': job.model = optarg; break;
		case OPTION_CHAT: job.chat = optarg; break;
		case OPTION_PROMPT: job.prompt = optarg; break;
		case OPTION_IDS: job.ids = optarg; break;
		case OPTION_BACKEND: job.backend = optarg; break;
		case OPTION_DTYPE: job.dtype = optarg; break;
		case OPTION_KERNELS: job.kernels = optarg; break;
		case OPTION_BACKEND_DIR: job.backend_dir = optarg; break;
		case OPTION_IGNORE_EOS: job.ignore_eos = true; break;
		case OPTION_PRINT_IDS: job.print_ids = true; break;
		case OPTION_QUIET: job.quiet = true; break;
		case 'h':
			fputs(help, stdout);
			return TOOL_OK;
		case '?':
			return tool_usage("generate", "wrong option");
		default:
			if (!set_option(c, optarg, &job))
				return TOOL_USAGE;
		}
	}
	if (optind < argc)
		return tool_usage("generate", "unexpected argument %s", argv[optind]);
	if (!job.model)
		return tool_usage("generate", "--model FILE is needed");
	if (!!job.chat + !!job.prompt + !!job.ids != 1)
		return tool_usage("generate", "one of --chat, --prompt and --ids is needed");
	if (generate(&job, &error))
		return tool_fail("generate", &error);
	return TOOL_OK;
}
