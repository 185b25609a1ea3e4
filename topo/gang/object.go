package gang

import (
	"errors"
	"fmt"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// The API groups that have a PodGroup, all in version v1alpha1. The second is
// the only one that a cluster from 1.31 on may have: *.k8s.io without the x is
// protected.
const (
	APIGroup     = "scheduling.sigs.k8s.io"
	APIGroupXK8s = "scheduling.x-k8s.io"
	APIVersion   = "v1alpha1"
	Resource     = "podgroups"
	Kind         = "PodGroup"
)

// ReadObject reads a PodGroup object of either API group, as JSON decoded into
// maps: spec.minMember and spec.scheduleTimeoutSeconds, and the annotations
// that pods may have as well. The error names every field or key that has a
// fault.
func ReadObject(object map[string]any, d wellknown.Domains) (Spec, error) {
	meta, _ := object["metadata"].(map[string]any)
	name, _ := meta["name"].(string)
	namespace, _ := meta["namespace"].(string)
	if !isName(name) || !isName(namespace) {
		return Spec{}, errors.New("PodGroup has no name and namespace")
	}
	r := reader{labels: texts(meta["labels"]), annotations: texts(meta["annotations"])}
	s := Spec{Key: types.NamespacedName{Namespace: namespace, Name: name}}
	r.read(&s, false, d)

	fields, _ := object["spec"].(map[string]any)
	if value, ok := fields["minMember"]; ok && value != nil {
		n := r.field("spec.minMember", value, MaxMembers)
		if n > 0 && s.MinMember > 0 && n != s.MinMember {
			r.fault("spec.minMember is %d and its min-available %d", n, s.MinMember)
		}
		s.MinMember = n
	}
	if value, ok := fields["scheduleTimeoutSeconds"]; ok && value != nil {
		s.Timeout = time.Duration(r.field("spec.scheduleTimeoutSeconds", value, int(maxTimeout/time.Second))) * time.Second
	}
	if len(r.faults) > 0 {
		return s, fmt.Errorf("PodGroup %s: %w", s.Key, errors.Join(r.faults...))
	}
	return s, nil
}

// field is a whole number of 1 to most.
func (r *reader) field(name string, value any, most int) int {
	var n int64
	switch v := value.(type) {
	case int64:
		n = v
	case int:
		n = int64(v)
	case float64:
		if n = int64(math.Max(-1, math.Min(v, float64(most)+1))); float64(n) != v {
			n = -1
		}
	}
	if n < 1 || n > int64(most) {
		r.fault("%s: %v is not 1 to %d", name, wellknown.Clip(fmt.Sprint(value)), most)
		return 0
	}
	return int(n)
}

// texts are the strings of a map; the API server lets nothing else in.
func texts(value any) map[string]string {
	from, _ := value.(map[string]any)
	to := make(map[string]string, len(from))
	for key, v := range from {
		if text, ok := v.(string); ok {
			to[key] = text
		}
	}
	return to
}
