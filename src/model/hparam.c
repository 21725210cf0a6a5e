/* hparam.c: owns reading hyper-parameters with their ranges.  Does not own what they mean.  Invariant: a value that was
 * returned lies in the range its caller named, so sizes computed from it stay small enough to multiply. */
#include "model/arch.h"

#include <math.h>
#include <stdio.h>

enum { KEY_MAX = 128 };

static enum status key_of(const struct model *model, const char *key, char ret[KEY_MAX], struct error *error)
{
	int length = snprintf(ret, KEY_MAX, "%s.%s", model->info.architecture, key);

	if (length < 0 || length >= KEY_MAX)
		return error_set(error, STATUS_LIMIT, "key %s.%s is too long", model->info.architecture, key);
	return STATUS_OK;
}

enum status hparam_u32(const struct gguf *gguf, const struct model *model, const char *key, bool required, uint32_t min,
    uint32_t max, uint32_t *ret, struct error *error)
{
	char        name[KEY_MAX];
	uint64_t    value;
	enum status status = key_of(model, key, name, error);

	if (status)
		return status;
	status = gguf_get_u64(gguf, name, &value, error);
	if (status == STATUS_NOT_FOUND)
		return required ? error_set(error, STATUS_INVALID, "the file lacks %s", name) : STATUS_OK;
	if (status)
		return status;
	if (value < min || value > max)
		return error_set(error, STATUS_INVALID, "%s = %llu is outside %u…%u", name, (unsigned long long)value, min,
		    max);
	*ret = (uint32_t)value;
	return STATUS_OK;
}

enum status hparam_f64(const struct gguf *gguf, const struct model *model, const char *key, bool required, double min,
    double max, double *ret, struct error *error)
{
	char        name[KEY_MAX];
	double      value;
	enum status status = key_of(model, key, name, error);

	if (status)
		return status;
	status = gguf_get_f64(gguf, name, &value, error);
	if (status == STATUS_NOT_FOUND)
		return required ? error_set(error, STATUS_INVALID, "the file lacks %s", name) : STATUS_OK;
	if (status)
		return status;
	if (!(value >= min && value <= max))
		return error_set(error, STATUS_INVALID, "%s = %g is outside %g…%g", name, value, min, max);
	*ret = value;
	return STATUS_OK;
}

enum status hparam_refuse(const struct gguf *gguf, const struct model *model, const char *key, const char *feature,
    struct error *error)
{
	uint32_t    value = 0;
	enum status status = hparam_u32(gguf, model, key, false, 0, UINT32_MAX, &value, error);

	if (status == STATUS_OK && value)
		return error_set(error, STATUS_UNSUPPORTED, "%s.%s = %u: %s is not supported", model->info.architecture, key,
		    value, feature);
	return status;
}
