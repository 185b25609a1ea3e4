package gang

import (
	"errors"

	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// ReadPlacement reads what annotations say of the place of a gang whose members,
// size and name are told elsewhere: a PodGroup of Kubernetes' own API
// (scheduling.k8s.io), or a pod of it. That is the size of a slice, the levels
// of the map, and what to do without one; nothing else is looked at. The error
// names every key that has a fault.
func ReadPlacement(key types.NamespacedName, annotations map[string]string, d wellknown.Domains) (Spec, error) {
	spec := Spec{Key: key}
	if len(annotations) == 0 {
		return spec, nil
	}
	r := reader{annotations: annotations}
	r.wishes(&spec, d)
	return spec, errors.Join(r.faults...)
}

// wishes fills in what a gang wants of its place.
func (r *reader) wishes(s *Spec, d wellknown.Domains) {
	places := []place{{d.GPUGroupSize(), false}}
	if d.GPUGroupSize() != wellknown.GPUGroupSizeAlias {
		places = append(places, place{wellknown.GPUGroupSizeAlias, false})
	}
	if text, at := r.one(places...); text != "" {
		s.GroupSize = r.number(at, text, MaxGroupSize)
	}
	s.Required, s.Preferred = r.kind(wellknown.GangRequiredLevel), r.kind(wellknown.GangPreferredLevel)
	if text, at := r.one(place{wellknown.GangWithoutMap, false}); text != "" {
		if s.WithoutMap = WithoutMap(text); s.WithoutMap != Wait && s.WithoutMap != Place {
			r.fault("%s: %q is neither %s nor %s", at, wellknown.Clip(text), Wait, Place)
		}
	}
}
