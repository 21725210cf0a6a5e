/* glm4_moe_lite.c: GLM-4.7-Flash: DeepSeek-V3's layers (deepseek_v3.c) in GLM's configuration; where config.json does not say
 * otherwise, the first layer is the one without experts. */
#include "model/arch/deepseek_v3.h"

static enum status read_hparams(struct model *model, struct error *error)
{
	return deepseek_v3_read(model, &dense_keys_usual, 1, error);
}

const struct model_arch model_arch_glm4_moe_lite = {
	.name = { "glm4_moe_lite", NULL }, .layers = { "model.layers.", NULL }, .experts = { "mlp.experts.", NULL },
	.read = read_hparams, .weights = deepseek_v3_weights, .weight_count = DEEPSEEK_WEIGHTS,
	.activations = deepseek_v3_activations, .activation_count = DEEPSEEK_ACTIVATIONS, .forward = deepseek_v3_forward,
	.draft = deepseek_v3_draft,
};
