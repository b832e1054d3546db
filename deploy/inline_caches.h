/* Caches at the places where compiled code looks up an attribute, a method or a key by its name, as CPython's
   interpreter keeps them. deploy/compile.py puts this before the C code of each module. */
#ifndef INLINE_CACHES_H
#define INLINE_CACHES_H
#include <CPy.h>

/* Only errors lead to these functions, so gcc puts the code on the way to them apart (deploy/compile.py). */
#define COLD __attribute__((cold))
COLD void CPy_AddTraceback(const char *, const char *, int, PyObject *);
COLD void CPy_TypeError(const char *, PyObject *);
COLD void CPy_TypeErrorTraceback(const char *, const char *, int, PyObject *, const char *, PyObject *);
COLD void PyErr_SetString(PyObject *, const char *);
COLD static void CPy_DecRef(PyObject *); /* mypyc's for code that rarely runs, like the next */
COLD static void CPy_XDecRef(void *);

typedef struct {
    uint64_t version; /* of the type or dictionary in which the name was looked up: no other ever has the same */
    PyObject *name;   /* held */
    PyObject *found;  /* held by that type or dictionary while it keeps its version */
    int32_t kind;     /* of what was found (inline_caches.c); 0: nothing */
    int32_t offset;   /* in an object of the type */
} PlaceCache;

#define AT_PLACE(call) ({ static PlaceCache cache_; call; })
#define HIDDEN __attribute__((visibility("hidden")))

HIDDEN PyObject *cached_attribute(PyObject *object, PyObject *name, PlaceCache *cache);
HIDDEN PyObject *cached_method_call(
    PyObject *name, PyObject *const *arguments, size_t count, PyObject *keywords, PlaceCache *cache);
HIDDEN PyObject *cached_item(PyObject *dictionary, PyObject *key, PlaceCache *cache);
HIDDEN PyObject *called(PyObject *callable, PyObject *const *arguments, size_t count, PyObject *keywords);

#if !defined(INLINE_CACHES_C) && !defined(Py_GIL_DISABLED)
#define PyObject_GetAttr(object, name) AT_PLACE(cached_attribute(object, name, &cache_))
#define PyObject_VectorcallMethod(name, arguments, count, keywords) \
    AT_PLACE(cached_method_call(name, arguments, count, keywords, &cache_))
#define CPyDict_GetItem(dictionary, key) AT_PLACE(cached_item(dictionary, key, &cache_))
#define PyObject_Vectorcall called
#pragma GCC visibility push(hidden) /* what the modules declare from here on is their library's own */
#endif
#endif
