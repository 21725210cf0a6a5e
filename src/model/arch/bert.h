/* bert.h: what bert.c lends to encoders that differ from BERT only in how positions are counted. */
#ifndef PENSTOCK_MODEL_ARCH_BERT_H
#define PENSTOCK_MODEL_ARCH_BERT_H

#include "model/arch.h"

/* Of struct model_arch. */
#define BERT_ARCH .layers = { "encoder.layer.", "blk." }, .encoder = true, .weights = bert_weights, \
	.weight_count = BERT_WEIGHT_COUNT, .ignored = bert_ignored, .activations = bert_activations, \
	.activation_count = BERT_ACTIVATION_COUNT, .forward = bert_forward

enum { BERT_WEIGHT_COUNT = 17, BERT_ACTIVATION_COUNT = 5 };

extern const struct model_weight  bert_weights[BERT_WEIGHT_COUNT];
extern const struct model_ignored bert_ignored[];
extern const enum model_dim       bert_activations[BERT_ACTIVATION_COUNT];

/* POSITION_OFFSET rows of the position embedding are before that of position 0. */
enum status bert_read(struct model *model, uint32_t position_offset, struct error *error);
enum status bert_forward(struct model *model, const struct batch *batch);

#endif
