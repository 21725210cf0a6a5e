noinst_LIBRARIES += libfile.a
libfile_a_SOURCES = src/file/gguf.c src/file/gguf.h
FILE_LIBS = libfile.a

