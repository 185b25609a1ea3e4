// Package manifest reads what users submit, and returns the pods that its controllers would make: with the labels by
// which topo/gang knows the gang, and topo/placement the rank. It is pure, and knows the kinds in [Kinds].
package manifest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// MaxPods is the most pods that a manifest may make.
const MaxPods = 10000

// UIDPrefix begins the UIDs of all objects of a manifest, which the API server has not seen.
const UIDPrefix = "plan/"

// Set is the content of a manifest.
type Set struct {
	// Pods have names, ranks, and UIDs that begin with UIDPrefix, in the order of the Jobs.
	Pods []*corev1.Pod
	Jobs []Job
	// PodGroups are objects of that kind, of any API group, as JSON decoded into maps. A controller would make some of
	// them. Pods refer to the Claims and Templates.
	PodGroups []map[string]any
	Claims    []resourceapi.ResourceClaim
	Templates map[types.NamespacedName]*resourceapi.ResourceClaimTemplate
	// Ignored names objects that make no pods, such as "Service train".
	Ignored []string
}

// Job is an object that makes a number of Pods.
type Job struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Pods      int    `json:"pods"`
	// Note says what about its pods is not in the manifest.
	Note string `json:"note,omitempty"`
}

// object has the parts that all objects have.
type object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec json.RawMessage   `json:"spec"`
	List []json.RawMessage `json:"items"`
	raw  []byte
}

// Read reads YAML documents or JSON. Objects without a namespace are in the given one. The error names the document
// and the field.
func Read(r io.Reader, namespace string) (*Set, error) {
	s := &Set{Templates: map[types.NamespacedName]*resourceapi.ResourceClaimTemplate{}}
	documents := yaml.NewYAMLOrJSONDecoder(r, 4096)
	for n := 1; ; n++ {
		var text json.RawMessage
		err := documents.Decode(&text)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && len(text) > 0 {
			err = s.add(text, namespace, false)
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
	}
	if len(s.Pods) == 0 {
		return nil, fmt.Errorf("no document makes pods: supported kinds are %s", strings.Join(Kinds(), ", "))
	}
	return s, nil
}

// Kinds returns the kinds that make pods.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds())) }

// add adds one object, or all objects of a List, but not of a List inside one: each level would be read again.
func (s *Set) add(text []byte, namespace string, inside bool) error {
	o := object{raw: text}
	if err := json.Unmarshal(text, &o); err != nil {
		return err
	}
	if o.Kind == "List" && !inside {
		for i, item := range o.List {
			if err := s.add(item, namespace, true); err != nil {
				return fmt.Errorf("items[%d]: %w", i, err)
			}
		}
		return nil
	}
	o.Namespace = cmp.Or(o.Namespace, namespace)
	o.Name = cmp.Or(o.Name, strings.TrimSuffix(o.GenerateName, "-"))
	switch {
	case o.Kind == "List":
		return errors.New("unsupported List in a List")
	case o.Kind == "":
		return errors.New("kind is missing")
	case o.Name == "":
		return fmt.Errorf("%s: metadata.name is missing", o.Kind)
	}
	if err := s.object(&o); err != nil {
		return fmt.Errorf("%s %s/%s: %w", o.Kind, o.Namespace, o.Name, err)
	}
	return nil
}

// object adds an object by its kind.
func (s *Set) object(o *object) (err error) {
	expand, known := kinds()[o.Kind]
	withoutPods := []string{ // API groups with other kinds, which make no pods.
		"", "apps", "policy", "networking.k8s.io", "rbac.authorization.k8s.io", "scheduling.k8s.io", "storage.k8s.io",
		"scheduling.volcano.sh", "kueue.x-k8s.io",
	}
	switch {
	case known:
		b := builder{set: s, object: o, job: Job{Kind: o.Kind, Namespace: o.Namespace, Name: o.Name}}
		expand(&b)
		s.Jobs, err = append(s.Jobs, b.job), b.err
	case o.Kind == "PodGroup":
		group := unstructured.Unstructured{}
		err = o.decode(&group)
		s.PodGroups = append(s.PodGroups, group.Object)
	case o.Kind == "ResourceClaim":
		claim := resourceapi.ResourceClaim{}
		err = o.decode(&claim)
		setCounts(&claim.Spec)
		s.Claims = append(s.Claims, claim)
	case o.Kind == "ResourceClaimTemplate":
		template := &resourceapi.ResourceClaimTemplate{}
		err = o.decode(template)
		setCounts(&template.Spec.Spec)
		s.Templates[types.NamespacedName{Namespace: o.Namespace, Name: o.Name}] = template
	case slices.Contains(withoutPods, o.GroupVersionKind().Group):
		s.Ignored = append(s.Ignored, o.Kind+" "+o.Name)
	default:
		err = fmt.Errorf("unsupported kind of %s: supported are %s", o.APIVersion, strings.Join(Kinds(), ", "))
	}
	return err
}

// decode decodes an object of the API.
func (o *object) decode(into metav1.Object) error {
	if err := json.Unmarshal(o.raw, into); err != nil {
		return err
	}
	into.SetNamespace(o.Namespace)
	into.SetName(o.Name)
	into.SetUID(types.UID(UIDPrefix + o.Kind + "/" + o.Namespace + "/" + o.Name))
	return nil
}

// setCounts sets how many devices are requested, as the API server defaults it.
func setCounts(spec *resourceapi.ResourceClaimSpec) {
	set := func(mode *resourceapi.DeviceAllocationMode, count *int64) {
		if *mode = cmp.Or(*mode, resourceapi.DeviceAllocationModeExactCount); *mode != resourceapi.DeviceAllocationModeAll {
			*count = cmp.Or(*count, 1)
		}
	}
	for i := range spec.Devices.Requests {
		r := &spec.Devices.Requests[i]
		if r.Exactly != nil {
			set(&r.Exactly.AllocationMode, &r.Exactly.Count)
		}
		for j := range r.FirstAvailable {
			set(&r.FirstAvailable[j].AllocationMode, &r.FirstAvailable[j].Count)
		}
	}
}

// builder makes the pods of an object, until the first error.
type builder struct {
	set    *Set
	object *object
	job    Job
	err    error
}

func (b *builder) fail(err error) { b.err = cmp.Or(b.err, err) }

// spec decodes the object's spec.
func (b *builder) spec(out any) {
	if len(b.object.Spec) == 0 {
		b.fail(errors.New("spec is missing"))
	} else if err := json.Unmarshal(b.object.Spec, out); err != nil {
		b.fail(fmt.Errorf("spec: %w", err))
	}
}

// make makes n pods of a template at a path of the object, with the labels that its controller sets. The label index,
// unless empty, gets the number of each pod. Names begin with the names of the object and the task.
func (b *builder) make(
	path string, t *corev1.PodTemplateSpec, n int, task, index string, labels map[string]string,
) {
	if n > 0 && len(t.Spec.Containers) == 0 {
		b.fail(fmt.Errorf("%s: spec.containers is missing", path))
	} else if len(b.set.Pods)+n > MaxPods {
		b.fail(fmt.Errorf("makes %d pods or more: at most %d are planned", len(b.set.Pods)+n, MaxPods))
	}
	if b.err != nil {
		return
	}
	spec := t.Spec
	spec.NodeName, spec.InitContainers, spec.Containers = "", defaulted(spec.InitContainers), defaulted(spec.Containers)
	name := b.object.Name
	if task != "" {
		name += "-" + strings.ToLower(task)
	}
	for i := range n {
		own := map[string]string{}
		maps.Copy(own, t.Labels)
		maps.Copy(own, labels)
		if index != "" {
			own[index] = fmt.Sprint(i)
		}
		b.set.Pods = append(b.set.Pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: b.object.Namespace, Name: fmt.Sprintf("%s-%d", name, i), Labels: own, Annotations: t.Annotations,
			UID: types.UID(fmt.Sprint(UIDPrefix, len(b.set.Pods))),
		}, Spec: spec})
	}
	b.job.Pods += n
}

// defaulted returns containers that request their limits, as the API server defaults them.
func defaulted(all []corev1.Container) []corev1.Container {
	all = slices.Clone(all)
	for i := range all {
		requests := corev1.ResourceList{}
		maps.Copy(requests, all[i].Resources.Limits)
		maps.Copy(requests, all[i].Resources.Requests)
		all[i].Resources.Requests = requests
	}
	return all
}

// annotate returns a template with one more annotation.
func annotate(t corev1.PodTemplateSpec, key, value string) *corev1.PodTemplateSpec {
	t.Annotations = maps.Clone(t.Annotations)
	metav1.SetMetaDataAnnotation(&t.ObjectMeta, key, value)
	return &t
}

// group adds the PodGroup that a controller would make.
func (b *builder) group(least int, annotations map[string]string) {
	group := unstructured.Unstructured{Object: map[string]any{
		"kind": "PodGroup", "spec": map[string]any{"minMember": int64(least)},
	}}
	group.SetNamespace(b.object.Namespace)
	group.SetName(b.object.Name)
	group.SetAnnotations(annotations)
	b.set.PodGroups = append(b.set.PodGroups, group.Object)
}

// Claim makes the claim that a pod gets by a template, as kube-controller-manager does.
func (s *Set) Claim(pod *corev1.Pod, ref *corev1.PodResourceClaim, t *resourceapi.ResourceClaimTemplate) {
	name := pod.Name + "-" + ref.Name
	s.Claims = append(s.Claims, resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: name, UID: types.UID(UIDPrefix + pod.Namespace + "/" + name),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))},
		},
		Spec: t.Spec.Spec,
	})
	pod.Status.ResourceClaimStatuses = append(pod.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{
		Name: ref.Name, ResourceClaimName: &name,
	})
}
