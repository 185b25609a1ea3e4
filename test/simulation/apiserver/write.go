package apiserver

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strconv"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// write creates, updates and patches.
func (s *Server) write(r *http.Request, k *kind, at path, content []byte) (json.RawMessage, error) {
	resource := schema.GroupResource{Resource: at.plural}
	if r.Method == http.MethodPatch {
		return s.patch(r, k, at, content)
	}
	body := &unstructured.Unstructured{}
	if err := body.UnmarshalJSON(content); err != nil {
		return nil, err
	}
	body.SetNamespace(at.namespace)
	at.name = body.GetName()
	old := k.objects[at.key()]
	switch {
	case r.Method == http.MethodPost && old != nil:
		return nil, apierrors.NewAlreadyExists(resource, at.name)
	case r.Method == http.MethodPut && old == nil:
		return nil, apierrors.NewNotFound(resource, at.name)
	case r.Method == http.MethodPut && body.GetResourceVersion() != decode(old).GetResourceVersion():
		return nil, apierrors.NewConflict(resource, at.name, nil)
	}
	return s.store(k, body), nil
}

func (s *Server) patch(r *http.Request, k *kind, at path, content []byte) (next []byte, err error) {
	old := k.objects[at.key()]
	kind := types.PatchType(r.Header.Get("Content-Type"))
	switch {
	case kind == types.ApplyPatchType:
		return s.apply(r, k, at, old, content)
	case old == nil:
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: at.plural}, at.name)
	case kind == types.StrategicMergePatchType:
		next, err = strategicpatch.StrategicMergePatch(old, content, map[string]any{
			"nodes": corev1.Node{}, "pods": corev1.Pod{},
		}[at.plural])
	default:
		next, err = jsonpatch.MergePatch(old, content)
	}
	if err != nil {
		return nil, err
	}
	return s.store(k, decode(next)), nil
}

// apply is server-side apply.
func (s *Server) apply(r *http.Request, k *kind, at path, old, content []byte) ([]byte, error) {
	patch, live := &unstructured.Unstructured{}, &unstructured.Unstructured{}
	if err := patch.UnmarshalJSON(content); err != nil {
		return nil, err
	}
	live.SetGroupVersionKind(k.gvk())
	live.SetNamespace(at.namespace)
	live.SetName(at.name)
	if old != nil {
		live = decode(old)
	}
	if uid := patch.GetUID(); uid != "" && uid != live.GetUID() {
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: at.plural}, at.name, nil)
	}
	manager, err := managedfields.NewDefaultFieldManager(managedfields.NewDeducedTypeConverter(),
		oneVersion{}, oneVersion{}, oneVersion{}, k.gvk(), k.gvk().GroupVersion(), "", nil)
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	applied, err := manager.Apply(live, patch, q.Get("fieldManager"), q.Get("force") == "true")
	if err != nil {
		return nil, err
	}
	next, _ := applied.(*unstructured.Unstructured) // As live.
	return s.store(k, next), nil
}

// oneVersion converts nothing: every kind has one version.
type oneVersion struct{}

// Convert implements [runtime.ObjectConvertor].
func (oneVersion) Convert(any, any, any) error { return nil }

// ConvertToVersion implements [runtime.ObjectConvertor].
func (oneVersion) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return in, nil
}

// ConvertFieldLabel implements [runtime.ObjectConvertor].
func (oneVersion) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

// Default implements [runtime.ObjectDefaulter].
func (oneVersion) Default(runtime.Object) {}

// New implements [runtime.ObjectCreater].
func (oneVersion) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(kind)
	return o, nil
}

// store keeps an object, with a new version if anything changed.
func (s *Server) store(k *kind, o *unstructured.Unstructured) []byte {
	key := o.GetNamespace() + "/" + o.GetName()
	old := k.objects[key]
	o.SetGroupVersionKind(k.gvk())
	o.SetGeneration(1)
	if old != nil {
		before := decode(old)
		o.SetUID(before.GetUID())
		o.SetResourceVersion(before.GetResourceVersion())
		o.SetGeneration(before.GetGeneration())
		if reflect.DeepEqual(o, before) {
			return old
		}
		if !reflect.DeepEqual(o.Object["spec"], before.Object["spec"]) {
			o.SetGeneration(before.GetGeneration() + 1)
		}
	}
	if o.GetUID() == "" {
		o.SetUID(uuid.NewUUID())
	}
	s.version++
	o.SetResourceVersion(strconv.FormatInt(s.version, 10))
	now := encode(o)
	k.objects[key] = now
	k.notify(old, now)
	return now
}

func (s *Server) remove(k *kind, key string) bool {
	old := k.objects[key]
	if old == nil {
		return false
	}
	delete(k.objects, key)
	s.version++
	k.notify(old, nil)
	return true
}
