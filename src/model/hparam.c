/* hparam.c: owns reading hyper-parameters with their ranges, from either spelling.  Does not own what they mean.
 * Invariant: a value that was returned lies in the range its caller named, so sizes computed from it stay small enough
 * to multiply. */
#include "model/arch.h"

#include <stdio.h>
#include <string.h>

enum { KEY_MAX = 128 };

static enum status key_of(const struct model *model, const char *key, char ret[KEY_MAX], struct error *error)
{
	int length = snprintf(ret, KEY_MAX, "%s.%s", model->info.architecture, key);

	if (length < 0 || length >= KEY_MAX)
		return error_set(error, STATUS_LIMIT, "key %s.%s is too long", model->info.architecture, key);
	return STATUS_OK;
}

static inline const struct gguf *gguf_of(const struct model *model) { return checkpoint_gguf(model->source.checkpoint); }

/* True when the spelling of the source has no such key, or config.json lacks it. */
static bool absent(const struct model *model, const char *hub, const char *gguf)
{
	if (model_is_gguf(model))
		return gguf == NULL;
	return hub == NULL || hf_config_kind(model->source.config, hub) == HF_ABSENT;
}

/* For a GGUF: STATUS_NOT_FOUND becomes an error only when the key is required. */
static enum status missing(const char *name, bool required, struct error *error)
{
	return required ? error_set(error, STATUS_INVALID, "the file lacks %s", name) : STATUS_OK;
}

enum status hparam_u32(const struct model *model, const char *hub, const char *gguf, bool required, uint32_t min,
    uint32_t max, uint32_t *ret, struct error *error)
{
	char        name[KEY_MAX];
	uint64_t    value;
	enum status status;

	if (!required && absent(model, hub, gguf))
		return STATUS_OK;
	if (!model_is_gguf(model))
		return hf_config_u32(model->source.config, hub, min, max, ret, error);
	if ((status = key_of(model, gguf, name, error)))
		return status;
	status = gguf_get_u64(gguf_of(model), name, &value, error);
	if (status)
		return status == STATUS_NOT_FOUND ? missing(name, required, error) : status;
	if (value < min || value > max)
		return error_set(error, STATUS_INVALID, "%s = %llu is outside %u…%u", name, (unsigned long long)value, min,
		    max);
	*ret = (uint32_t)value;
	return STATUS_OK;
}

enum status hparam_f64(const struct model *model, const char *hub, const char *gguf, bool required, double min, double max,
    double *ret, struct error *error)
{
	char        name[KEY_MAX];
	double      value;
	enum status status;

	if (!required && absent(model, hub, gguf))
		return STATUS_OK;
	if (!model_is_gguf(model))
		return hf_config_f64(model->source.config, hub, min, max, ret, error);
	if ((status = key_of(model, gguf, name, error)))
		return status;
	status = gguf_get_f64(gguf_of(model), name, &value, error);
	if (status)
		return status == STATUS_NOT_FOUND ? missing(name, required, error) : status;
	if (!(value >= min && value <= max))
		return error_set(error, STATUS_INVALID, "%s = %g is outside %g…%g", name, value, min, max);
	*ret = value;
	return STATUS_OK;
}

enum status hparam_bool(const struct model *model, const char *hub, const char *gguf, bool *ret, struct error *error)
{
	char        name[KEY_MAX];
	enum status status;

	if (absent(model, hub, gguf))
		return STATUS_OK;
	if (!model_is_gguf(model))
		return hf_config_bool(model->source.config, hub, ret, error);
	if ((status = key_of(model, gguf, name, error)))
		return status;
	status = gguf_get_bool(gguf_of(model), name, ret, error);
	return status == STATUS_NOT_FOUND ? STATUS_OK : status;
}

enum status hparam_refuse(const struct model *model, const char *hub, const char *gguf, const char *feature,
    struct error *error)
{
	uint32_t    value = 0;
	bool        on = false;
	enum status status;

	if (absent(model, hub, gguf))
		return STATUS_OK;
	if (!model_is_gguf(model) && hf_config_kind(model->source.config, hub) == HF_BOOL) {
		status = hf_config_bool(model->source.config, hub, &on, error);
		value = on;
	} else
		status = hparam_u32(model, hub, gguf, false, 0, UINT32_MAX, &value, error);
	if (status || !value)
		return status;
	if (model_is_gguf(model))
		return error_set(error, STATUS_UNSUPPORTED, "%s.%s = %u: %s is not supported", model->info.architecture, gguf,
		    value, feature);
	return error_set(error, STATUS_UNSUPPORTED, "%s: %s = %u: %s is not supported", model->source.config->label, hub, value,
	    feature);
}

enum status hparam_expect(const struct model *model, const char *hub, const char *word, struct error *error)
{
	const char *value;
	enum status status;

	if (model_is_gguf(model))
		return STATUS_OK;
	status = hf_config_string_or(model->source.config, hub, word, &value, error);
	if (status || strcmp(value, word) == 0)
		return status;
	return error_set(error, STATUS_UNSUPPORTED, "%s: %s = \"%.40s\": only \"%s\" is supported", model->source.config->label,
	    hub, value, word);
}
