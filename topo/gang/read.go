package gang

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// ErrNoGang is returned by [Read] for a pod that is in no gang.
var ErrNoGang = errors.New("is in no gang")

// key is a label or an annotation.
type key struct {
	name  string
	label bool
}

func label(name string) key      { return key{name, true} }
func annotation(name string) key { return key{name, false} }

func (k key) String() string {
	if k.label {
		return "label " + k.name
	}
	return "annotation " + k.name
}

// nameKeys returns the spellings of a gang's name.
func nameKeys() []key {
	return []key{
		label(wellknown.GangName), label(wellknown.GangNameBare), label(wellknown.GangNameXK8s),
		annotation(wellknown.KoordinatorName),
	}
}

// memberKeys returns the keys that require a gang's name.
func memberKeys() []key {
	return []key{
		label(wellknown.GangMinAvailable), label(wellknown.GangGroups), label(wellknown.GangMatchPolicy),
		annotation(wellknown.Gang), annotation(wellknown.GangMinAvailable), annotation(wellknown.GangGroups),
		annotation(wellknown.KoordinatorMinAvailable), annotation(wellknown.KoordinatorGroups),
	}
}

// Mentions reports whether a pod has any key that [Read] uses. It is cheaper than Read, since
// most pods have none.
func Mentions(pod *corev1.Pod) bool {
	r := reader{labels: pod.Labels, annotations: pod.Annotations}
	return slices.ContainsFunc(nameKeys(), r.has) || slices.ContainsFunc(memberKeys(), r.has)
}

// IsLabeled reports whether a pod describes its gang completely in the PodGroup spelling: the
// name in a label, and min-available in a label or an annotation. Koordinator's annotations do
// not count, since their users have objects of Koordinator.
func IsLabeled(pod *corev1.Pod) bool {
	name := pod.Labels[wellknown.GangName] + pod.Labels[wellknown.GangNameBare] + pod.Labels[wellknown.GangNameXK8s]
	return name != "" && pod.Labels[wellknown.GangMinAvailable]+pod.Annotations[wellknown.GangMinAvailable] != ""
}

// Read reads a pod. The error is [ErrNoGang], or names every invalid key. The Key is set in
// any case if the name is valid.
func Read(pod *corev1.Pod, d wellknown.Domains) (Spec, error) {
	r := reader{labels: pod.Labels, annotations: pod.Annotations}
	name, at := r.value(nameKeys()...)
	if name != "" && !isName(name) {
		r.errorf("%s: invalid name %q", at, wellknown.Clip(name))
		name = ""
	}
	if name == "" && r.has(annotation(wellknown.Gang)) {
		if _, name, _ = r.ofAPI(pod, true); name == "" {
			r.errorf("%s: no label of the pod names its Job, JobSet, LeaderWorkerSet, Kubeflow job or Ray cluster",
				annotation(wellknown.Gang))
		}
	}
	if name == "" && len(r.errs) == 0 {
		if i := slices.IndexFunc(memberKeys(), r.has); i >= 0 {
			return Spec{}, fmt.Errorf("%s without the name of a gang: it is in %s", memberKeys()[i], wellknown.GangName)
		}
		return Spec{}, ErrNoGang
	}
	spec := Spec{Key: types.NamespacedName{Namespace: pod.Namespace, Name: name}}
	r.read(&spec, at == annotation(wellknown.KoordinatorName), d)
	return spec, errors.Join(r.errs...)
}

// ReadPlacement reads the annotations about placement (size of a slice, levels of the topology,
// behavior without a topology) of a native PodGroup (scheduling.k8s.io), which has
// its members, size and name in fields, or of a pod in it. The error names every invalid key.
func ReadPlacement(key types.NamespacedName, annotations map[string]string, d wellknown.Domains) (Spec, error) {
	spec := Spec{Key: key}
	r := reader{annotations: annotations}
	r.placement(&spec, d)
	return spec, errors.Join(r.errs...)
}

// ReadObject reads a decoded PodGroup object of either API group: spec.minMember,
// spec.scheduleTimeoutSeconds, and the annotations that pods may have too. The error names
// every invalid field or key.
func ReadObject(object map[string]any, d wellknown.Domains) (Spec, error) {
	u := unstructured.Unstructured{Object: object}
	if !isName(u.GetName()) || !isName(u.GetNamespace()) {
		return Spec{}, errors.New("PodGroup has no name and namespace")
	}
	r := reader{labels: u.GetLabels(), annotations: u.GetAnnotations()}
	s := Spec{
		Key:     types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()},
		Created: u.GetCreationTimestamp().Time,
	}
	r.read(&s, false, d)

	if n, ok := r.field(object, "minMember", MaxMembers); ok {
		if n > 0 && s.MinMember > 0 && n != s.MinMember {
			r.errorf("spec.minMember is %d and its min-available %d", n, s.MinMember)
		}
		s.MinMember = n
	}
	if n, ok := r.field(object, "scheduleTimeoutSeconds", int(maxTimeout/time.Second)); ok {
		s.Timeout = time.Duration(n) * time.Second
	}
	if len(r.errs) > 0 {
		return s, fmt.Errorf("PodGroup %s: %w", s.Key, errors.Join(r.errs...))
	}
	return s, nil
}

// reader reads labels and annotations, and collects their errors.
type reader struct {
	labels, annotations map[string]string
	errs                []error
}

func (r *reader) errorf(format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf(format, args...))
}

func (r *reader) lookup(k key) (string, bool) {
	from := r.annotations
	if k.label {
		from = r.labels
	}
	text, ok := from[k.name]
	return text, ok
}

func (r *reader) has(k key) bool {
	_, ok := r.lookup(k)
	return ok
}

// value returns the value of the keys that exist, which must agree, and the first of these keys.
func (r *reader) value(keys ...key) (value string, at key) {
	for _, k := range keys {
		text, ok := r.lookup(k)
		text = strings.TrimSpace(text)
		switch {
		case !ok:
		case text == "":
			r.errorf("%s is empty", k)
		case value == "":
			value, at = text, k
		case text != value:
			r.errorf("%s is %q and %s is %q", at, wellknown.Clip(value), k, wellknown.Clip(text))
		}
	}
	return value, at
}

// read sets all fields except for the key.
func (r *reader) read(s *Spec, koordinator bool, d wellknown.Domains) {
	s.MinMember = r.minMember()
	r.policy(s, koordinator)
	r.groups(s)
	if text, at := r.value(annotation(wellknown.KoordinatorWaitingTime)); text != "" {
		timeout, err := time.ParseDuration(text)
		if err != nil || timeout <= 0 || timeout > maxTimeout {
			r.errorf("%s: invalid duration %q: 1ns to %s, such as 30s", at, wellknown.Clip(text), maxTimeout)
		} else {
			s.Timeout = timeout
		}
	}
	r.placement(s, d)
	for _, k := range []key{annotation(wellknown.KoordinatorTotalNumber), annotation(wellknown.KoordinatorMode)} {
		if r.has(k) {
			s.Ignored = append(s.Ignored, k.String()+" is ignored")
		}
	}
}

// placement sets the fields about placement.
func (r *reader) placement(s *Spec, d wellknown.Domains) {
	var sizes []key
	for _, name := range d.GPUGroupSizes() {
		sizes = append(sizes, annotation(name))
	}
	s.GroupSize = r.number(MaxGroupSize, sizes...)
	s.Required = r.level(annotation(wellknown.GangRequiredLevel))
	s.Preferred = r.level(annotation(wellknown.GangPreferredLevel))
	if text, at := r.value(annotation(wellknown.GangWithoutMap)); text != "" {
		if s.WithoutMap = WithoutMap(text); s.WithoutMap != Wait && s.WithoutMap != Place {
			r.errorf("%s: %q is neither %s nor %s", at, wellknown.Clip(text), Wait, Place)
		}
	}
}

func (r *reader) level(k key) string {
	text, at := r.value(k)
	if text != "" && wellknown.CheckValue(text) != nil {
		r.errorf("%s: invalid kind of group %q", at, wellknown.Clip(text))
		return ""
	}
	return text
}

// number returns a number from 1 to most in plain digits: 1e3, +1 and 0x1 are rejected as
// mistakes. It is 0 without any of the keys.
func (r *reader) number(most int, keys ...key) int {
	text, at := r.value(keys...)
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || strconv.Itoa(n) != text || n < 1 || n > most {
		r.errorf("%s: %q is not 1 to %d", at, wellknown.Clip(text), most)
		return 0
	}
	return n
}

// field returns a whole number from 1 to most of the spec of a decoded object; false if the
// object does not have it.
func (r *reader) field(object map[string]any, name string, most int) (int, bool) {
	value, ok, _ := unstructured.NestedFieldNoCopy(object, "spec", name)
	n, _ := value.(int64)
	if f, ok := value.(float64); ok && f == math.Trunc(f) {
		n = int64(f)
	}
	if value != nil && (n < 1 || n > int64(most)) {
		r.errorf("spec.%s: %v is not 1 to %d", name, wellknown.Clip(fmt.Sprint(value)), most)
		n = 0
	}
	return int(n), ok && value != nil
}

// minMember returns how many members the gang needs; 0 if the pod does not state it.
func (r *reader) minMember() int {
	keys := []key{
		label(wellknown.GangMinAvailable), annotation(wellknown.GangMinAvailable),
		annotation(wellknown.KoordinatorMinAvailable),
	}
	own := annotation(wellknown.Gang)
	if text, _ := r.lookup(own); text != "true" {
		return r.number(MaxMembers, append(keys, own)...)
	}
	size := r.number(MaxMembers, append(keys, annotation(wellknown.LWSSize))...)
	if size == 0 {
		r.errorf(`%s: "true" is for the pods of LeaderWorkerSets, which contain their number; `+
			"write the number of members", own)
	}
	return size
}

func (r *reader) policy(s *Spec, koordinator bool) {
	text, at := r.value(
		label(wellknown.GangMatchPolicy), annotation(wellknown.GangMatchPolicy), annotation(wellknown.KoordinatorMatchPolicy))
	p := Policy(text)
	switch known := []Policy{"", OnceSatisfied, OnlyWaiting, WaitingAndRunning, WaitingRunningSucceed}; {
	case !slices.Contains(known, p):
		r.errorf("%s: unsupported value %q: supported are %s, %s, %s, %s", at, wellknown.Clip(text),
			OnceSatisfied, OnlyWaiting, WaitingAndRunning, WaitingRunningSucceed)
	case koordinator && p != "" && p != OnceSatisfied:
		s.Policy = OnceSatisfied
		s.Ignored = append(s.Ignored, fmt.Sprintf("%s: %s is ignored: a gang that %s names is %s",
			at, p, wellknown.KoordinatorName, OnceSatisfied))
	default:
		s.Policy = p
	}
}

// groups sets the gangs that run together, sorted and including the gang itself.
func (r *reader) groups(s *Spec) {
	if r.has(label(wellknown.GangGroups)) {
		r.errorf("label %s: must be an annotation, since a JSON list is not a valid label value", wellknown.GangGroups)
	}
	for _, k := range []key{annotation(wellknown.GangGroups), annotation(wellknown.KoordinatorGroups)} {
		text, ok := r.lookup(k)
		if !ok {
			continue
		}
		switch groups, err := parseGroups(text, s.Key); {
		case err != nil:
			r.errorf("%s: %w", k, err)
		case s.Groups == nil:
			s.Groups = groups
		case !slices.Equal(s.Groups, groups):
			r.errorf("%s and %s list different gangs", annotation(wellknown.GangGroups), k)
		}
	}
}

// parseGroups reads a JSON list of "namespace/name", adds the gang itself and drops duplicates.
func parseGroups(text string, self types.NamespacedName) ([]types.NamespacedName, error) {
	// Each gang has two names of 253 characters at most, a slash, quotes, a comma and a blank.
	const maxText = MaxGroups * (2*253 + 5)
	if len(text) > maxText {
		return nil, fmt.Errorf("%d bytes are more than %d gangs need", len(text), MaxGroups)
	}
	var words []string
	if err := json.Unmarshal([]byte(text), &words); err != nil {
		return nil, fmt.Errorf(
			`invalid list %q: must be JSON such as ["namespace/gang-a", "namespace/gang-b"]`, wellknown.Clip(text))
	}
	groups := []types.NamespacedName{self}
	for _, word := range words {
		namespace, name, slash := strings.Cut(strings.TrimSpace(word), "/")
		if !slash {
			namespace, name = self.Namespace, namespace
		}
		if !isName(namespace) || !isName(name) || strings.Contains(namespace, ".") {
			return nil, fmt.Errorf("invalid gang %q: must be namespace/name", wellknown.Clip(word))
		}
		if namespace != self.Namespace {
			return nil, fmt.Errorf("gang %s/%s is in another namespace", namespace, name)
		}
		groups = append(groups, types.NamespacedName{Namespace: namespace, Name: name})
	}
	slices.SortFunc(groups, func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	groups = slices.Compact(groups)
	if len(groups) > MaxGroups {
		return nil, fmt.Errorf("%d gangs; at most %d", len(groups), MaxGroups)
	}
	return groups, nil
}

// isName reports whether s is a valid name of an object or a namespace.
func isName(s string) bool { return wellknown.CheckDomain(s) == nil }
