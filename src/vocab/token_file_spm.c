/* token_file_spm.c: owns the reading of SentencePiece models (sentencepiece_model.proto): the wire format of protocol
 * buffers, of which four kinds of fields are met, and the meaning of the few fields that matter.  A library for it would
 * bring a compiler and generated code for what is one loop here.
 *
 * Invariant: every length is checked against what is left before it is used; unknown fields are stepped over. */
#include "base/bytes.h"
#include "base/utf8.h"
#include "vocab/token_file.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };
enum { PIECE_NORMAL = 1, PIECE_UNKNOWN = 2, PIECE_CONTROL = 3, PIECE_USER = 4, PIECE_UNUSED = 5, PIECE_BYTE = 6 };
enum { MODEL_UNIGRAM = 1, MODEL_BPE = 2 };

struct message {
	const unsigned char *at, *end;
};

struct field {
	uint32_t       number;
	unsigned       wire;
	uint64_t       value; /* VARINT, FIXED32, FIXED64 */
	struct message bytes; /* BYTES */
};

static bool read_varint(struct message *message, uint64_t *ret)
{
	uint64_t value = 0;

	for (unsigned shift = 0; shift < 64 && message->at < message->end; shift += 7) {
		unsigned char byte = *message->at++;
		value |= (uint64_t)(byte & 0x7f) << shift;
		if (!(byte & 0x80)) {
			*ret = value;
			return true;
		}
	}
	return false;
}

static bool read_fixed(struct message *message, unsigned bytes, uint64_t *ret)
{
	uint64_t value = 0;

	if ((size_t)(message->end - message->at) < bytes)
		return false;
	for (unsigned i = 0; i < bytes; i++)
		value |= (uint64_t)*message->at++ << 8 * i;
	*ret = value;
	return true;
}

/* The next field; false when the bytes are no message. */
static bool read_field(struct message *message, struct field *ret)
{
	uint64_t key, len;

	if (!read_varint(message, &key) || key >> 3 == 0 || key >> 3 > UINT32_MAX)
		return false;
	*ret = (struct field){ .number = (uint32_t)(key >> 3), .wire = key & 7 };
	switch (ret->wire) {
	case WIRE_VARINT:
		return read_varint(message, &ret->value);
	case WIRE_FIXED64:
		return read_fixed(message, 8, &ret->value);
	case WIRE_FIXED32:
		return read_fixed(message, 4, &ret->value);
	case WIRE_BYTES:
		if (!read_varint(message, &len) || len > (uint64_t)(message->end - message->at))
			return false;
		ret->bytes = (struct message){ message->at, message->at + len };
		message->at += len;
		return true;
	default:
		return false;
	}
}

struct reading {
	struct token_file *file;
	const char        *label;
	struct error      *error;
	size_t             scores; /* room for */
	uint64_t           model_type;
	bool               byte_fallback, suffix, dummy_prefix, collapse, escape;
	int64_t            bos, eos;
};

static enum status damaged(const struct reading *reading, const char *what)
{
	return error_set(reading->error, STATUS_INVALID, "%.160s: the SentencePiece model is damaged: its %s does not hold together",
	    reading->label, what);
}

static enum status add_piece(struct reading *reading, const char *piece, size_t len, double score, uint64_t type)
{
	static const enum token_kind kinds[] = { TOKEN_NORMAL, TOKEN_NORMAL, TOKEN_CONTROL, TOKEN_CONTROL, TOKEN_USER, TOKEN_PADDING,
		TOKEN_BYTE };
	struct token_file *file = reading->file;
	uint32_t           id = file->size;
	struct token_added added = { .id = id, .normalized = true };
	char               quoted[BYTES_QUOTE_MAX];
	enum status        status;

	if (type < PIECE_NORMAL || type > PIECE_BYTE || !utf8_valid(piece, len, NULL) || !(score == score))
		return error_set(reading->error, STATUS_INVALID, "%.160s: piece %u %s of type %llu is no piece", reading->label, id,
		    bytes_quote(quoted, piece, len), (unsigned long long)type);
	if (id == reading->scores) {
		size_t  room = reading->scores ? reading->scores * 2 : 1024;
		double *scores = realloc(file->scores, room * sizeof *scores);
		if (!scores)
			return error_set(reading->error, STATUS_NOMEM, "%.160s: no memory for %zu scores", reading->label, room);
		file->scores = scores;
		reading->scores = room;
	}
	file->scores[id] = score;
	status = token_file_add(file, id, piece, len, kinds[type], reading->error);
	if (!status && type == PIECE_UNKNOWN && file->unk >= 0)
		return error_set(reading->error, STATUS_INVALID, "%.160s: pieces %d and %u are both the unknown one", reading->label,
		    file->unk, id);
	if (!status && type == PIECE_UNKNOWN)
		file->unk = (int32_t)id;
	return status || type != PIECE_USER ? status : token_file_add_added(file, &added, reading->error);
}

static enum status read_piece(struct reading *reading, struct message message)
{
	struct field   field;
	struct message piece = { NULL, NULL };
	uint64_t       type = PIECE_NORMAL;
	float          score = 0;

	while (message.at < message.end) {
		if (!read_field(&message, &field))
			return damaged(reading, "piece");
		if (field.number == 1 && field.wire == WIRE_BYTES)
			piece = field.bytes;
		else if (field.number == 2 && field.wire == WIRE_FIXED32)
			memcpy(&score, &(uint32_t){ (uint32_t)field.value }, sizeof score);
		else if (field.number == 3 && field.wire == WIRE_VARINT)
			type = field.value;
	}
	if (!piece.at)
		return damaged(reading, "piece");
	return add_piece(reading, (const char *)piece.at, (size_t)(piece.end - piece.at), (double)score, type);
}

static enum status read_trainer(struct reading *reading, struct message message)
{
	struct field field;

	while (message.at < message.end) {
		if (!read_field(&message, &field))
			return damaged(reading, "trainer specification");
		if (field.wire != WIRE_VARINT)
			continue;
		switch (field.number) {
		case 3: reading->model_type = field.value; break;
		case 24: reading->suffix = field.value != 0; break;
		case 35: reading->byte_fallback = field.value != 0; break;
		case 41: reading->bos = (int32_t)field.value; break;
		case 42: reading->eos = (int32_t)field.value; break;
		default: break;
		}
	}
	return STATUS_OK;
}

static enum status read_normalizer(struct reading *reading, struct message message)
{
	struct token_file *file = reading->file;
	struct field       field;

	while (message.at < message.end) {
		if (!read_field(&message, &field))
			return damaged(reading, "normalizer specification");
		if (field.number == 2 && field.wire == WIRE_BYTES && field.bytes.at < field.bytes.end) {
			size_t len = (size_t)(field.bytes.end - field.bytes.at);
			free(file->charsmap);
			file->charsmap = malloc(len);
			if (!file->charsmap)
				return error_set(reading->error, STATUS_NOMEM, "%.160s: no memory for a normalizer", reading->label);
			memcpy(file->charsmap, field.bytes.at, len);
			file->charsmap_len = len;
		} else if (field.wire == WIRE_VARINT && field.number == 3) {
			reading->dummy_prefix = field.value != 0;
		} else if (field.wire == WIRE_VARINT && field.number == 4) {
			reading->collapse = field.value != 0;
		} else if (field.wire == WIRE_VARINT && field.number == 5) {
			reading->escape = field.value != 0;
		}
	}
	return STATUS_OK;
}

static enum status translate(struct reading *reading)
{
	struct token_file *file = reading->file;
	json_t            *steps = json_pack("[{s:s, s:{s:s}, s:s}, {s:s}, {s:s}]", "type", "Replace", "pattern", "String",
	    "\xe2\x96\x81", "content", " ", "type", "ByteFallback", "type", "Fuse");

	if (reading->dummy_prefix || reading->collapse) /* the text lost its heading spaces, or one was put before it */
		json_array_insert_new(steps, 0, json_pack("{s:s, s:b}", "type", "SentencePiece", "remove_extra_whitespaces",
		    (int)reading->collapse));
	file->decoder = json_pack("{s:s, s:o}", "type", "Sequence", "decoders", steps);
	file->normalizer = json_pack("{s:s, s:b, s:b}", "type", "SentencePiece", "add_dummy_prefix", (int)reading->dummy_prefix,
	    "remove_extra_whitespaces", (int)reading->collapse);
	if (!file->decoder || !file->normalizer)
		return error_set(reading->error, STATUS_NOMEM, "%.160s: no memory for a normalizer", reading->label);
	file->sentencepiece = file->fuse_unk = true;
	file->model = reading->model_type == MODEL_BPE ? TOKEN_BPE : TOKEN_UNIGRAM;
	file->merges_by_score = reading->model_type == MODEL_BPE;
	file->byte_fallback = reading->byte_fallback;
	file->model_size = file->size;
	if (reading->bos >= 0 && reading->bos < file->size)
		file->bos = (int32_t)reading->bos;
	if (reading->eos >= 0 && reading->eos < file->size)
		return token_file_add_eos(file, reading->eos, reading->error);
	return STATUS_OK;
}

enum status token_file_from_spm(const char *bytes, size_t len, const char *label, struct token_file *ret, struct error *error)
{
	struct token_file file;
	struct reading    reading = { .file = &file, .label = label, .error = error, .model_type = MODEL_UNIGRAM, .dummy_prefix = true,
		   .collapse = true, .escape = true, .bos = 1, .eos = 2 };
	struct message    message = { (const unsigned char *)bytes, (const unsigned char *)bytes + len };
	struct field      field;
	enum status       status = STATUS_OK;

	token_file_init(&file);
	while (!status && message.at < message.end) {
		if (!read_field(&message, &field))
			status = damaged(&reading, "message");
		else if (field.number == 1 && field.wire == WIRE_BYTES)
			status = read_piece(&reading, field.bytes);
		else if (field.number == 2 && field.wire == WIRE_BYTES)
			status = read_trainer(&reading, field.bytes);
		else if (field.number == 3 && field.wire == WIRE_BYTES)
			status = read_normalizer(&reading, field.bytes);
	}
	if (!status && (reading.model_type != MODEL_UNIGRAM && reading.model_type != MODEL_BPE))
		status = error_set(error, STATUS_UNSUPPORTED, "%.160s: SentencePiece models of type %llu are not known here", label,
		    (unsigned long long)reading.model_type);
	if (!status && (reading.suffix || !reading.escape))
		status = error_set(error, STATUS_UNSUPPORTED, "%.160s: %s is not known here", label,
		    reading.suffix ? "treat_whitespace_as_suffix" : "a model that does not escape spaces");
	if (!status && file.unk < 0)
		status = error_set(error, STATUS_INVALID, "%.160s: there is no piece for what is unknown", label);
	if (!status)
		status = translate(&reading);
	if (!status)
		status = token_file_finish(&file, error);
	if (status) {
		token_file_free(&file);
		return status;
	}
	*ret = file;
	return STATUS_OK;
}
