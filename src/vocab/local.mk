noinst_LIBRARIES += libvocab.a
libvocab_a_SOURCES = src/vocab/vocab.c src/vocab/vocab.h src/vocab/bytelevel.h
VOCAB_LIBS = libvocab.a

