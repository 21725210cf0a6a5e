/* jinja_parts.h: what the files of the template interpreter share; included by src/text/jinja_*.c only.
 *
 *   jinja_lexer.c   source → tokens             jinja_eval.c     statements, expressions, scopes
 *   jinja_parser.c  tokens → syntax tree        jinja_call.c     functions, methods, attributes
 *   jinja_value.c   values, arena, equality     jinja_filter.c   filters and tests
 *   jinja_string.c  strings, str(), repr(), tojson
 *
 * Memory and errors.  All of a compilation and all of a rendering lives in one arena and nothing else is owned, so an error
 * leaves by one longjmp from wherever it is found (jinja_raise) to the public function, which frees the arena.
 */
#ifndef PENSTOCK_TEXT_JINJA_PARTS_H
#define PENSTOCK_TEXT_JINJA_PARTS_H

#include "text/jinja.h"

#include <setjmp.h>
#include <stdint.h>

/* ---- arena and errors ----------------------------------------------------------------- */

struct jinja_chunk;
struct jinja_arena {
	struct jinja_chunk *chunks; /* newest first */
	size_t              used, capacity, total, max;
};

/* What every function of the interpreter gets first.  LINE is where it is in the template. */
struct jinja_run {
	struct jinja_arena arena;
	jmp_buf            leave;
	struct error      *error;
	enum status        status; /* of the error that left */
	const char        *label;
	uint32_t           line, depth;
	uint64_t           steps; /* left */
	const struct jinja_template *jinja;
	const struct jinja_variables *variables;
	struct jinja_scope   *scope;
	struct jinja_builder *out;
	int                   flow; /* of the loop: enum jinja_flow */
};

void *jinja_alloc(struct jinja_run *run, size_t size); /* zeroed */
/* ITEMS, COUNT of SIZE bytes each, with room for one more: itself, or a copy of twice *CAPACITY (FIRST when that is 0). */
void *jinja_grow(struct jinja_run *run, void *items, size_t count, size_t *capacity, size_t size, size_t first);
void  jinja_arena_free(struct jinja_arena *arena);
void  jinja_one_line(char *message); /* control characters become spaces */
_Noreturn void jinja_raise(struct jinja_run *run, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void jinja_spend(struct jinja_run *run, uint64_t steps);
void jinja_enter(struct jinja_run *run); /* one level deeper; the way back is run->depth-- */

/* ---- values ----------------------------------------------------------------- */

enum jinja_kind {
	JINJA_UNDEFINED, JINJA_NONE, JINJA_BOOL, JINJA_INT, JINJA_FLOAT, JINJA_STRING, JINJA_LIST, JINJA_TUPLE, JINJA_DICT,
	JINJA_NAMESPACE, JINJA_FUNCTION, JINJA_LOOP
};

/* Python's sequences that are all lists here: what differs is said by `kind`. */
enum jinja_list_kind {
	JINJA_LIST_PLAIN, JINJA_LIST_RANGE,
	JINJA_LIST_VIEW,      /* of a dict: has a length, no index */
	JINJA_LIST_GENERATOR, /* true, no length, no index, empty once it was walked */
	JINJA_LIST_GROUP      /* a tuple with the attributes grouper and list */
};

/* Bytes of UTF-8 with their provenance.  MASK NULL: all bytes are DATA or none is; else mask[i] = 1 for data.  Immutable,
 * so that parts of a string share its bytes. */
struct jinja_string {
	const char    *bytes;
	size_t         len;
	const uint8_t *mask;
	bool           data;
};

struct jinja_value {
	enum jinja_kind kind;
	bool            data; /* a number or constant that a client wrote */
	union {
		bool                   boolean;
		int64_t                integer;
		double                 real;
		struct jinja_string   *string;
		struct jinja_list     *list; /* also of tuples */
		struct jinja_dict     *dict; /* also of namespaces */
		struct jinja_function *function;
		struct jinja_loop     *loop;
		const char            *missing; /* of undefined: words for the error, NULL = none */
	};
};

struct jinja_list {
	struct jinja_value  *items;
	size_t               count, capacity;
	enum jinja_list_kind kind;
};

/* Insertion order is kept. */
struct jinja_entry {
	struct jinja_value key, value;
};
struct jinja_dict {
	struct jinja_entry *entries;
	size_t              count, capacity;
	uint32_t           *index; /* open addressing, entry + 1; NULL while small */
	size_t              index_size;
};

enum jinja_function_kind { JINJA_FUNCTION_GLOBAL, JINJA_FUNCTION_METHOD, JINJA_FUNCTION_MACRO, JINJA_FUNCTION_OBJECT };
struct jinja_function {
	enum jinja_function_kind  kind;
	uint32_t                  id;    /* of a global or method */
	struct jinja_value        self;  /* of a method; the items of a cycler; the separator of a joiner */
	const struct jinja_node  *node;  /* of a macro */
	struct jinja_scope       *scope; /* where the macro was defined */
	size_t                    at;    /* of a cycler or joiner: calls so far */
};

struct jinja_loop {
	const struct jinja_list *items;
	size_t                   at;
	uint32_t                 depth;
	const struct jinja_node *node; /* of a recursive loop */
	struct jinja_scope      *scope;
	struct jinja_value       last_changed;
	bool                     changed_once;
};

/* Arguments of a call, a filter or a test. */
struct jinja_arguments {
	struct jinja_value *values, *named;
	const char        **names;
	size_t              count, named_count;
};

struct jinja_value jinja_none(void);
struct jinja_value jinja_bool(bool b);
struct jinja_value jinja_int(int64_t i);
struct jinja_value jinja_float(double f);
struct jinja_value jinja_undefined(struct jinja_run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
struct jinja_value jinja_string_value(struct jinja_run *run, struct jinja_string string);
struct jinja_value jinja_literal(struct jinja_run *run, const char *text); /* TEXT must outlive the run */
struct jinja_value jinja_list_value(struct jinja_run *run, enum jinja_list_kind kind, size_t capacity);
struct jinja_value jinja_tuple_value(struct jinja_run *run, size_t capacity);
struct jinja_value jinja_dict_value(struct jinja_run *run);
struct jinja_value jinja_function_value(struct jinja_run *run, enum jinja_function_kind kind, uint32_t id,
    struct jinja_value self);
void               jinja_list_add(struct jinja_run *run, struct jinja_list *list, struct jinja_value value);
void               jinja_dict_set(struct jinja_run *run, struct jinja_dict *dict, struct jinja_value key,
                  struct jinja_value value);
const struct jinja_value *jinja_dict_get(struct jinja_run *run, const struct jinja_dict *dict, struct jinja_value key);
const struct jinja_value *jinja_dict_get_name(const struct jinja_dict *dict, const char *name, size_t len);
struct jinja_value        jinja_from_json(struct jinja_run *run, const json_t *json, bool data);

const char *jinja_type_name(struct jinja_value value); /* as Python calls it */
bool        jinja_truth(struct jinja_value value);
bool        jinja_is_number(struct jinja_value value); /* bool, int, float */
bool        jinja_is_sequence(struct jinja_value value); /* list or tuple, of any kind */
bool        jinja_is_concrete(struct jinja_value value); /* what Python calls list or tuple: no range, view or generator */
int64_t     jinja_as_int(struct jinja_run *run, struct jinja_value value, const char *what); /* int or bool, else an error */
double      jinja_as_float(struct jinja_value number);
bool        jinja_equal(struct jinja_run *run, struct jinja_value a, struct jinja_value b);
/* < 0, 0, > 0; types that Python cannot order are an error. */
int         jinja_order(struct jinja_run *run, struct jinja_value a, struct jinja_value b);
bool        jinja_contains(struct jinja_run *run, struct jinja_value container, struct jinja_value item);
/* Python's iter(): a list of what comes out; walks generators to their end. */
struct jinja_list *jinja_iterate(struct jinja_run *run, struct jinja_value value);
size_t             jinja_length(struct jinja_run *run, struct jinja_value value);
/* Stable. */
void jinja_sort(struct jinja_run *run, struct jinja_list *list, const struct jinja_list *keys, bool reverse);

/* ---- strings ----------------------------------------------------------------- */

/* A growing string.  Its mask is made when the first byte differs from those before. */
struct jinja_builder {
	char    *bytes;
	uint8_t *mask; /* NULL: all are `data` */
	size_t   len, capacity;
	bool     data;
};

void                jinja_put(struct jinja_run *run, struct jinja_builder *builder, const char *bytes, size_t len, bool data);
void                jinja_put_string(struct jinja_run *run, struct jinja_builder *builder, struct jinja_string string);
void                jinja_put_text(struct jinja_run *run, struct jinja_builder *builder, struct jinja_value value); /* str() */
void                jinja_put_repr(struct jinja_run *run, struct jinja_builder *builder, struct jinja_value value);
struct jinja_string jinja_built(const struct jinja_builder *builder);
struct jinja_value  jinja_built_value(struct jinja_run *run, const struct jinja_builder *builder);
struct jinja_string jinja_text(struct jinja_run *run, struct jinja_value value); /* str() */
struct jinja_string jinja_part(struct jinja_string string, size_t from, size_t to); /* in bytes */
bool                jinja_string_is(struct jinja_string string, const char *text);
bool                jinja_string_same(struct jinja_string a, struct jinja_string b);
const char         *jinja_terminated(struct jinja_run *run, struct jinja_string string);
size_t              jinja_find(struct jinja_string string, struct jinja_string what, size_t from); /* SIZE_MAX = nowhere */
size_t              jinja_characters(struct jinja_string string);
size_t              jinja_character_at(struct jinja_string string, size_t character); /* its byte offset, ≤ len */
size_t              jinja_character_bytes(struct jinja_string string, size_t offset);
uint32_t            jinja_code_point(struct jinja_string string, size_t offset);
bool                jinja_is_space(uint32_t code_point); /* str.isspace */
enum jinja_case { JINJA_LOWER, JINJA_UPPER, JINJA_CAPITALIZE, JINJA_TITLE, JINJA_SWAP };
struct jinja_string jinja_change_case(struct jinja_run *run, struct jinja_string string, enum jinja_case to);
enum jinja_strip { JINJA_STRIP_LEFT = 1, JINJA_STRIP_RIGHT = 2, JINJA_STRIP_BOTH = 3 };
/* CHARS NULL: white space. */
struct jinja_string jinja_strip(struct jinja_string string, const struct jinja_string *chars, enum jinja_strip side);
struct jinja_string jinja_replace(struct jinja_run *run, struct jinja_string string, struct jinja_string from,
    struct jinja_string to, int64_t limit); /* < 0: all */
struct jinja_value  jinja_join(struct jinja_run *run, struct jinja_string separator, const struct jinja_list *items);
struct jinja_value  jinja_split_lines(struct jinja_run *run, struct jinja_string string, bool keep_ends);
struct jinja_value  jinja_percent(struct jinja_run *run, struct jinja_string format, struct jinja_value arguments);

struct jinja_json_style {
	bool                ensure_ascii, sort_keys, pretty;
	struct jinja_string indent, item_separator, key_separator; /* indent: of one level, when pretty */
};
void jinja_put_json(struct jinja_run *run, struct jinja_builder *builder, struct jinja_value value,
    const struct jinja_json_style *style, uint32_t level);

/* ---- syntax tree ----------------------------------------------------------------- */

enum jinja_token_type {
	JINJA_TOKEN_END, JINJA_TOKEN_DATA, JINJA_TOKEN_BLOCK_BEGIN, JINJA_TOKEN_BLOCK_END, JINJA_TOKEN_VARIABLE_BEGIN,
	JINJA_TOKEN_VARIABLE_END, JINJA_TOKEN_NAME, JINJA_TOKEN_STRING, JINJA_TOKEN_INTEGER, JINJA_TOKEN_FLOAT,
	JINJA_TOKEN_OPERATOR
};
struct jinja_token {
	enum jinja_token_type type;
	const char           *text; /* of data and operators: in the source; of names and strings: terminated, decoded */
	size_t                len;
	uint32_t              line, column;
	int64_t               integer;
	double                real;
};
/* All tokens of SOURCE (newlines are \n already), JINJA_TOKEN_END last. */
struct jinja_token *jinja_lex(struct jinja_run *run, const char *source, size_t len, size_t *ret_count);
_Noreturn void      jinja_refuse(struct jinja_run *run, uint32_t line, uint32_t column, enum status status,
         const char *format, ...) __attribute__((format(printf, 5, 6)));

enum jinja_node_type {
	/* statements */
	JINJA_NODE_DATA, JINJA_NODE_OUTPUT, JINJA_NODE_IF, JINJA_NODE_FOR, JINJA_NODE_SET, JINJA_NODE_SET_BLOCK, JINJA_NODE_MACRO,
	JINJA_NODE_CALL_BLOCK, JINJA_NODE_FILTER_BLOCK, JINJA_NODE_WITH, JINJA_NODE_SCOPE, JINJA_NODE_BREAK, JINJA_NODE_CONTINUE,
	/* expressions */
	JINJA_NODE_CONSTANT, JINJA_NODE_NAME, JINJA_NODE_TUPLE, JINJA_NODE_LIST, JINJA_NODE_DICT, JINJA_NODE_CONDITION,
	JINJA_NODE_AND, JINJA_NODE_OR, JINJA_NODE_NOT, JINJA_NODE_COMPARE, JINJA_NODE_CONCAT, JINJA_NODE_BINARY, JINJA_NODE_NEGATE,
	JINJA_NODE_POSITIVE, JINJA_NODE_ATTRIBUTE, JINJA_NODE_ITEM, JINJA_NODE_SLICE, JINJA_NODE_CALL, JINJA_NODE_FILTER,
	JINJA_NODE_TEST
};

enum jinja_operator {
	JINJA_OP_ADD, JINJA_OP_SUB, JINJA_OP_MUL, JINJA_OP_DIV, JINJA_OP_FLOOR, JINJA_OP_MOD, JINJA_OP_POW,
	JINJA_OP_EQ, JINJA_OP_NE, JINJA_OP_LT, JINJA_OP_LE, JINJA_OP_GT, JINJA_OP_GE, JINJA_OP_IN, JINJA_OP_NOT_IN
};

struct jinja_nodes {
	struct jinja_node **items;
	size_t              count, capacity;
};

/* What a macro's body asks for (id of a MACRO). */
enum jinja_uses { JINJA_USES_VARARGS = 1, JINJA_USES_KWARGS = 2, JINJA_USES_CALLER = 4 };

/* One shape for all; what the members mean:
 *   OUTPUT a   IF list = condition, SCOPE, condition, SCOPE …; b = else    FOR a = target, b = iterable, c = filter,
 *   list = body, other = else, flag = recursive    SET a = target, b = value    SET_BLOCK a = target, list = body, b = filters
 *   around a CONSTANT, or NULL    MACRO name, parameters: names / list (default or NULL), other = body
 *   CALL_BLOCK a = the call, b = its MACRO    FILTER_BLOCK b, list    WITH names / other, list    SCOPE list
 *   COMPARE a, then ops / list    BINARY op a b    CONDITION a = test, b = then, c = else or NULL
 *   ATTRIBUTE a, name    ITEM a b    SLICE a b c (each may be NULL)    CALL a, arguments    FILTER, TEST a, id, arguments
 *   DICT list = keys and values in turn    arguments: list positional, names / other named, b = *star, c = **star */
struct jinja_node {
	enum jinja_node_type type;
	enum jinja_operator  op;
	uint32_t             line, id;
	bool                 flag;
	const char          *name; /* interned: equal names are one pointer */
	struct jinja_value   constant;
	struct jinja_node   *a, *b, *c;
	struct jinja_nodes   list, other;
	const char         **names;
	uint8_t             *ops;
};

struct jinja_template {
	struct jinja_run run; /* owns everything, only its arena is used after compilation */
	char            *label;
	const char      *source; /* in the arena */
	size_t           source_len;
	struct jinja_nodes body;
	const char     **names; /* interned */
	size_t           name_count, name_capacity;
	const char      *loop, *caller, *varargs, *kwargs; /* interned */
};
void        jinja_parse(struct jinja_run *run, struct jinja_template *jinja, const char *source, size_t len);
const char *jinja_intern(struct jinja_run *run, struct jinja_template *jinja, const char *name);

/* ---- evaluation ----------------------------------------------------------------- */

enum jinja_flow { JINJA_FLOW_ON, JINJA_FLOW_BREAK, JINJA_FLOW_CONTINUE };

struct jinja_variable {
	const char        *name; /* interned */
	struct jinja_value value;
};
struct jinja_scope {
	struct jinja_scope    *parent;
	struct jinja_variable *variables;
	size_t                 count, capacity;
};

struct jinja_value jinja_evaluate(struct jinja_run *run, const struct jinja_node *node);
struct jinja_value jinja_binary(struct jinja_run *run, enum jinja_operator op, struct jinja_value a, struct jinja_value b);
struct jinja_value jinja_call_macro(struct jinja_run *run, const struct jinja_function *macro,
    struct jinja_arguments *arguments);
struct jinja_value jinja_run_loop(struct jinja_run *run, const struct jinja_node *node, struct jinja_value iterable,
    uint32_t depth);

/* jinja_call.c.  Named arguments are matched with NAMES (COUNT of them); *ret[i] is NULL where none was given. */
void jinja_bind(struct jinja_run *run, const char *what, const struct jinja_arguments *arguments, const char *const *names,
    size_t count, size_t required, const struct jinja_value **ret);
struct jinja_value jinja_call(struct jinja_run *run, struct jinja_value callee, struct jinja_arguments *arguments);
struct jinja_value jinja_attribute(struct jinja_run *run, struct jinja_value object, const char *name); /* a.b */
struct jinja_value jinja_item(struct jinja_run *run, struct jinja_value object, struct jinja_value key); /* a[b] */
bool jinja_global(struct jinja_run *run, const char *name, struct jinja_value *ret);

/* jinja_filter.c.  Ids by name, at compile time; UINT32_MAX = no such. */
uint32_t           jinja_filter_id(const char *name);
uint32_t           jinja_test_id(const char *name);
struct jinja_value jinja_filter(struct jinja_run *run, uint32_t id, struct jinja_value value,
    struct jinja_arguments *arguments);
bool               jinja_test(struct jinja_run *run, uint32_t id, struct jinja_value value, struct jinja_arguments *arguments);

#endif
