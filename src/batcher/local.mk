# batcher
