/* Reference cases with the vocabulary of SmolLM2-135M-Instruct.  PENSTOCK_TEST_MODEL names its GGUF file; without it, or with
 * another model, the test is skipped (exit 77). */
#include "text/chat.h"
#include "text_cases.h"

int main(void)
{
	const char           *path = getenv("PENSTOCK_TEST_MODEL");
	struct model          model = { 0 };
	struct chat_template *chat = NULL;
	struct error          error;
	unsigned              cases = 0;
	int                   wrong;

	if (!path || !*path) {
		printf("PENSTOCK_TEST_MODEL is not set\n");
		return 77;
	}
	if (model_load(&model, path, &error) || chat_template_from_gguf(model.gguf, NULL, &chat, &error)) {
		printf("%s\n", error.message);
		return 1;
	}
	if (vocab_size(model.vocab) != 49152 || vocab_special(model.vocab, "<jupyter_script>", 16) != 15) {
		printf("%s: not the vocabulary of SmolLM2\n", path);
		wrong = 77;
	} else {
		wrong = cases_compare(model.tokenizer, "smollm2_tokens.txt", &cases);
		printf("%u cases, %d differ\n", cases, wrong);
		wrong = wrong != 0 || cases < 90;
	}
	chat_template_free(chat);
	model_free(&model);
	return wrong;
}
