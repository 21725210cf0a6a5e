/* xlm_roberta.c: XLM-RoBERTa (Conneau et al. 2019; bge-m3): BERT's layers (bert.c) with positions counted from
 * pad_token_id + 1, and a padding token at pad_token_id itself.  (GGUF files of it are told apart in nothing from BERT's:
 * the rows before the first position are cut off there.)
 */
#include "model/arch/bert.h"

static enum status read_hparams(struct model *model, struct error *error)
{
	uint32_t    pad = 1;
	enum status status = hparam_u32(model, "pad_token_id", NULL, false, 0, MODEL_VOCAB_MAX - 1, &pad, error);

	if (!status)
		status = bert_read(model, pad + 1, error);
	if (!status)
		model->info.pad = (int32_t)pad;
	return status;
}

const struct model_arch model_arch_xlm_roberta = { .name = { "xlm-roberta", NULL }, .read = read_hparams, BERT_ARCH };
