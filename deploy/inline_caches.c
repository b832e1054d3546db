#define INLINE_CACHES_C
#include "inline_caches.h"
#include <structmember.h>

enum {
    NOTHING,
    /* attributes */
    MEMBER,
    COMPUTED,
    OF_MODULE,
    /* methods, by what calls them */
    ANY_CALL,
    FORMAT,
    NO_ARGUMENT,
    ONE_ARGUMENT,
    FAST,
    FAST_WITH_KEYWORDS,
    /* keys */
    ITEM,
};

static void keep(PlaceCache *cache, int kind, uint64_t version, PyObject *name, PyObject *found, Py_ssize_t offset) {
    if (version == 0 || offset < 0 || offset > INT32_MAX) /* types that changed too often have no version */
        return;
    Py_INCREF(name);
    Py_XSETREF(cache->name, name);
    cache->version = version;
    cache->found = found;
    cache->offset = (int32_t)offset;
    cache->kind = kind;
}

/* Dictionaries have versions up to Python 3.11. */
static uint64_t version_of(PyObject *dictionary) {
#if PY_VERSION_HEX < 0x030C0000
    return ((PyDictObject *)dictionary)->ma_version_tag;
#else
    return 0;
#endif
}

/* Whether a descriptor, found in the type of the object, was made for objects of this type. */
static int is_own(PyObject *object, PyObject *found) {
    int is_descriptor = Py_IS_TYPE(found, &PyMemberDescr_Type) || Py_IS_TYPE(found, &PyGetSetDescr_Type)
                        || Py_IS_TYPE(found, &PyMethodDescr_Type);
    return !is_descriptor || PyObject_TypeCheck(object, PyDescr_TYPE(found));
}

static __attribute__((noinline)) PyObject *look_up(PyObject *object, PyObject *name, PlaceCache *cache) {
    PyTypeObject *type = Py_TYPE(object);
    if (PyModule_CheckExact(object)) {
        PyObject *names = PyModule_GetDict(object), *value = PyDict_GetItemWithError(names, name);
        if (value != NULL)
            keep(cache, OF_MODULE, version_of(names), name, value, 0);
    } else if (type->tp_getattro == PyObject_GenericGetAttr) {
        PyObject *found = _PyType_Lookup(type, name); /* gives the type a version */
        if (found == NULL || !is_own(object, found)) {
            /* PyObject_GetAttr refuses a descriptor of another type. */
        } else if (Py_IS_TYPE(found, &PyMemberDescr_Type)) {
            PyMemberDef *member = ((PyMemberDescrObject *)found)->d_member;
            if (member->type == T_OBJECT_EX && (member->flags & ~READONLY) == 0)
                keep(cache, MEMBER, type->tp_version_tag, name, found, member->offset);
        } else if (Py_IS_TYPE(found, &PyGetSetDescr_Type) && ((PyGetSetDescrObject *)found)->d_getset->get != NULL)
            keep(cache, COMPUTED, type->tp_version_tag, name, found, 0);
    }
    return PyObject_GetAttr(object, name);
}

PyObject *cached_attribute(PyObject *object, PyObject *name, PlaceCache *cache) {
    if (likely(name == cache->name)) {
        uint64_t version = Py_TYPE(object)->tp_version_tag;
        if (cache->kind == MEMBER) {
            PyObject *value;
            if (version == cache->version && (value = *(PyObject **)((char *)object + cache->offset)) != NULL)
                return Py_NewRef(value);
        } else if (cache->kind == COMPUTED) {
            if (version == cache->version) {
                PyGetSetDef *defined = ((PyGetSetDescrObject *)cache->found)->d_getset;
                return defined->get(object, defined->closure);
            }
        } else if (PyModule_CheckExact(object) && version_of(PyModule_GetDict(object)) == cache->version)
            return Py_NewRef(cache->found);
    }
    return look_up(object, name, cache);
}

static int call_of(PyObject *method) {
    if (!Py_IS_TYPE(method, &PyMethodDescr_Type))
        return ANY_CALL;
    if (PyDescr_TYPE(method) == &PyUnicode_Type && PyUnicode_CompareWithASCIIString(PyDescr_NAME(method), "format") == 0)
        return FORMAT;
    switch (((PyMethodDescrObject *)method)->d_method->ml_flags) {
    case METH_NOARGS:
        return NO_ARGUMENT;
    case METH_O:
        return ONE_ARGUMENT;
    case METH_FASTCALL:
        return FAST;
    case METH_FASTCALL | METH_KEYWORDS:
        return FAST_WITH_KEYWORDS;
    default:
        return ANY_CALL;
    }
}

static __attribute__((noinline)) PyObject *look_up_method(
    PyObject *name, PyObject *const *arguments, size_t count, PyObject *keywords, PlaceCache *cache) {
    PyTypeObject *type = Py_TYPE(arguments[0]);
    if (type->tp_getattro == PyObject_GenericGetAttr) {
        PyObject *method = _PyType_Lookup(type, name);
        if (method != NULL && PyType_HasFeature(Py_TYPE(method), Py_TPFLAGS_METHOD_DESCRIPTOR)
            && is_own(arguments[0], method))
            keep(cache, call_of(method), type->tp_version_tag, name, method, type->tp_dictoffset);
    }
    return PyObject_VectorcallMethod(name, arguments, count, keywords);
}

PyObject *cached_method_call(
    PyObject *name, PyObject *const *arguments, size_t count, PyObject *keywords, PlaceCache *cache) {
    PyObject *self = arguments[0];
    if (unlikely(name != cache->name || Py_TYPE(self)->tp_version_tag != cache->version)
        || (cache->offset && *(PyObject **)((char *)self + cache->offset) != NULL)) /* attributes of its own */
        return look_up_method(name, arguments, count, keywords, cache);
    Py_ssize_t given = PyVectorcall_NARGS(count);
    if (cache->kind == FORMAT) { /* mypyc's way to write f"{value:,.2f}" */
        if (given == 3 && keywords == NULL && PyUnicode_CheckExact(arguments[2])
            && PyUnicode_CompareWithASCIIString(self, "{:{}}") == 0)
            return PyObject_Format(arguments[1], arguments[2]);
    } else if (cache->kind != ANY_CALL) {
        void (*function)(void) = (void (*)(void))((PyMethodDescrObject *)cache->found)->d_method->ml_meth;
        if (cache->kind == FAST_WITH_KEYWORDS)
            return ((_PyCFunctionFastWithKeywords)function)(self, arguments + 1, given - 1, keywords);
        if (keywords == NULL) {
            if (cache->kind == FAST)
                return ((_PyCFunctionFast)function)(self, arguments + 1, given - 1);
            if (cache->kind == ONE_ARGUMENT && given == 2)
                return ((PyCFunction)function)(self, arguments[1]);
            if (cache->kind == NO_ARGUMENT && given == 1)
                return ((PyCFunction)function)(self, NULL);
        }
    }
    return called(cache->found, arguments, given, keywords);
}

PyObject *cached_item(PyObject *dictionary, PyObject *key, PlaceCache *cache) {
    if (!PyDict_CheckExact(dictionary) || !PyUnicode_CheckExact(key))
        return CPyDict_GetItem(dictionary, key);
    uint64_t version = version_of(dictionary);
    if (key == cache->name && version == cache->version)
        return Py_NewRef(cache->found);
    PyObject *value = CPyDict_GetItem(dictionary, key);
    if (value != NULL && PyUnicode_CHECK_INTERNED(key))
        keep(cache, ITEM, version, key, value, 0);
    return value;
}

PyObject *called(PyObject *callable, PyObject *const *arguments, size_t count, PyObject *keywords) {
    PyTypeObject *type = Py_TYPE(callable);
    if (likely(PyType_HasFeature(type, Py_TPFLAGS_HAVE_VECTORCALL))) {
        vectorcallfunc function = *(vectorcallfunc *)((char *)callable + type->tp_vectorcall_offset);
        if (likely(function != NULL))
            return function(callable, arguments, count, keywords);
    }
    return PyObject_Vectorcall(callable, arguments, count, keywords);
}
