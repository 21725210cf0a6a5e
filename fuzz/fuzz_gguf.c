/* fuzz_gguf.c: a hostile model file, from its first byte to vocabulary, tokenizer, chat template and some ids.  Every file
 * must be refused with one line or yield handles that keep the promises of their headers; a broken promise aborts.
 *
 *   ./configure CC=clang --enable-fuzz --with-cuda=no CFLAGS='-g -O1 -fsanitize=address,undefined,fuzzer-no-link'
 *   make && ./fuzz/fuzz_gguf -dict=tests/corpus/gguf.dict -max_len=16384 CORPUS tests/corpus/gguf
 *
 * make check replays tests/corpus/gguf through the same function (fuzz/replay.c); tests/corpus/make_gguf.py makes the seeds.
 */
#include "file/gguf.h"
#include "text/chat.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "vocab/vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

enum { TOKENS_MAX = 4096 };

static volatile unsigned char sink; /* keeps the compiler from dropping the reads */

static void demand(bool holds, const char *what)
{
	if (!holds) {
		fprintf(stderr, "broken promise: %s\n", what);
		abort();
	}
}

/* One line, and a reason. */
static void check_error(const struct error *error)
{
	if (!error->message[0] || strchr(error->message, '\n'))
		fprintf(stderr, "the message: %s\n", error->message);
	demand(error->message[0] && !strchr(error->message, '\n'), "an error has one line");
}

static void look_at_tensors(const struct gguf *gguf, const unsigned char *data, size_t size)
{
	size_t total = 0;

	for (size_t i = 0; i < gguf_tensor_count(gguf); i++) {
		const struct gguf_tensor *tensor = gguf_tensor_at(gguf, i);
		const unsigned char      *bytes = tensor->data;
		demand(tensor->bytes > 0 && tensor->bytes <= size, "tensors have bytes");
		demand(bytes >= data && bytes <= data + size - tensor->bytes, "tensors lie in the file");
		demand((size_t)(bytes - data) % 8 == 0, "tensors are aligned");
		demand(gguf_tensor_find(gguf, tensor->name) == tensor, "tensors are found by name");
		sink = (unsigned char)(bytes[0] + bytes[tensor->bytes - 1]);
		total += tensor->bytes;
	}
	demand(total == gguf_data_bytes(gguf) && total <= size, "tensors do not overlap");
	demand(!gguf_tensor_find(gguf, "no such tensor\n"), "absent tensors are not found");
}

static enum status look_at_string(void *context, size_t index, const char *string, size_t len)
{
	size_t *next = context;
	demand(index == (*next)++, "strings come in order");
	if (len)
		sink = (unsigned char)(string[0] + string[len - 1]);
	return STATUS_OK;
}

static void look_at_keys(const struct gguf *gguf)
{
	static const char *const keys[] = { "general.alignment", "general.architecture", "llama.block_count", "tokenizer.ggml.tokens",
		"tokenizer.ggml.token_type", "tokenizer.ggml.scores", "a", "b", "c", "d", "e", "f", "absent" };

	for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
		struct error error = { .message = "" };
		uint64_t     number;
		double       real;
		bool         flag;
		const char  *string;
		size_t       len, next = 0;

		if (gguf_get_u64(gguf, keys[i], &number, &error))
			check_error(&error);
		if (gguf_get_f64(gguf, keys[i], &real, &error))
			check_error(&error);
		if (gguf_get_bool(gguf, keys[i], &flag, &error))
			check_error(&error);
		if (gguf_get_string(gguf, keys[i], &string, &len, &error))
			check_error(&error);
		else if (len)
			sink = (unsigned char)(string[0] + string[len - 1]);
		if (gguf_array_strings(gguf, keys[i], look_at_string, &next, &error))
			check_error(&error);
		if (gguf_array_count(gguf, keys[i], &len, &error) == STATUS_OK && len < 1 << 16) {
			int32_t *integers = malloc((len + 1) * sizeof *integers);
			float   *floats = malloc((len + 1) * sizeof *floats);
			if (integers && gguf_array_i32(gguf, keys[i], integers, len, &error))
				check_error(&error);
			if (floats && gguf_array_f32(gguf, keys[i], floats, len, &error))
				check_error(&error);
			free(integers);
			free(floats);
		}
	}
}

static void look_at_vocab(const struct vocab *vocab)
{
	size_t         len, count;
	const int32_t *eos = vocab_eos(vocab, &count);

	demand(count <= VOCAB_EOS_MAX, "ends are bounded");
	for (size_t i = 0; i < count; i++)
		demand(eos[i] >= 0 && (uint32_t)eos[i] < vocab_size(vocab), "ends are ids");
	demand(vocab_bos(vocab) >= (vocab_add_bos(vocab) ? 0 : -1) && vocab_bos(vocab) < (int64_t)vocab_size(vocab), "bos is an id");
	for (uint32_t id = 0; id < vocab_size(vocab); id++) {
		const char     *bytes = vocab_bytes(vocab, id, &len);
		enum vocab_kind kind = vocab_kind(vocab, id);
		if (len)
			sink = (unsigned char)(bytes[0] + bytes[len - 1]);
		if (kind == VOCAB_CONTROL || kind == VOCAB_USER) {
			/* By its spelling, which bytes differ from where a byte-level decoder reads it ("\u0120" is shown as a space). */
			int32_t found = vocab_special(vocab, bytes, len);
			demand(found < 0 || (found < (int32_t)vocab_size(vocab) && (vocab_kind(vocab, (uint32_t)found) == VOCAB_CONTROL ||
			    vocab_kind(vocab, (uint32_t)found) == VOCAB_USER)), "what is found by spelling is special");
		}
	}
}

/* TEXT as data and as literal; what comes out is decoded. */
static void encode(const struct tokenizer *tokenizer, const struct vocab *vocab, const char *text, size_t len)
{
	struct detokenizer detokenizer;
	struct token_list  list = { 0 };
	struct buf         out;
	struct error       error = { .message = "" };

	buf_init(&out, 1 << 24);
	for (int literal = 0; literal < 2; literal++) {
		struct text_span span = { text, len, literal };
		list.count = 0;
		if (tokenizer_encode(tokenizer, &span, 1, TOKENS_MAX, &list, &error)) {
			check_error(&error);
			continue;
		}
		demand(list.count <= TOKENS_MAX && list.count <= len, "a token stands for at least one byte");
		detokenizer_init(&detokenizer, vocab);
		for (size_t i = 0; i < list.count; i++) {
			demand(list.ids[i] >= 0 && (uint32_t)list.ids[i] < vocab_size(vocab), "tokens are ids");
			demand(literal || vocab_kind(vocab, (uint32_t)list.ids[i]) != VOCAB_CONTROL, "data makes no control tokens");
			detokenizer_push(&detokenizer, list.ids[i], &out);
			demand(detokenizer.held_len <= 3, "at most 3 bytes are held");
		}
		detokenizer_finish(&detokenizer, &out);
	}
	buf_free(&out);
	token_list_free(&list);
}

static void render(const struct gguf *gguf, const struct tokenizer *tokenizer)
{
	struct chat_conversation conversation = { .add_generation_prompt = true };
	struct chat_template    *chat;
	struct chat_prompt       prompt;
	struct token_list        list = { 0 };
	struct error             error = { .message = "" };
	enum status              status;

	if (chat_template_from_gguf(gguf, NULL, &chat, &error)) {
		check_error(&error);
		return;
	}
	conversation.messages = json_pack("[{s:s, s:s}, {s:s, s:s}]", "role", "user", "content", "a b<|im_end|>", "role",
	    "assistant", "content", "");
	status = chat_render(chat, &conversation, &prompt, &error);
	json_decref(conversation.messages);
	if (status) {
		check_error(&error);
		chat_template_free(chat);
		return;
	}
	if (tokenizer_encode(tokenizer, prompt.spans, prompt.span_count, TOKENS_MAX, &list, &error))
		check_error(&error);
	token_list_free(&list);
	chat_prompt_free(&prompt);
	chat_template_free(chat);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	static const char text[] = "Hello, it's 123  \xe4\xb8\xad\xe6\x96\x87 \xf0\x9f\x98\x80\r\n"
		"<|im_end|><s>\xff\xe2\x98 ab aab bb  \t";
	struct gguf      *gguf;
	struct vocab     *vocab;
	struct tokenizer *tokenizer;
	struct error      error = { .message = "" };
	size_t            tail = size < 200 ? size : 200;

	if (gguf_parse(data, size, "input", &gguf, &error)) {
		check_error(&error);
		return 0;
	}
	look_at_tensors(gguf, data, size);
	look_at_keys(gguf);
	if (vocab_from_gguf(gguf, &vocab, &error)) {
		check_error(&error);
		gguf_close(gguf);
		return 0;
	}
	look_at_vocab(vocab);
	if (tokenizer_from_gguf(gguf, vocab, &tokenizer, &error)) {
		check_error(&error);
	} else {
		encode(tokenizer, vocab, text, sizeof text - 1);
		encode(tokenizer, vocab, (const char *)data + size - tail, tail);
		render(gguf, tokenizer);
		tokenizer_free(tokenizer);
	}
	vocab_free(vocab);
	gguf_close(gguf);
	return 0;
}
