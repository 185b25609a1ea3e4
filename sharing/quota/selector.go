package quota

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// UUIDs are the GPUs that a pod's annotations name, sorted and without doubles:
// use are the only ones that the pod accepts, none means all; avoid are those
// that it rejects, and avoid wins over use. UUIDs fails if an annotation and its
// alias differ, because one of the two owners would be surprised.
func UUIDs(annotations map[string]string, d wellknown.Domains) (use, avoid []string, err error) {
	use, useErr := uuids(annotations, d.UseGPUUUID(), wellknown.UseGPUUUIDAlias)
	avoid, avoidErr := uuids(annotations, d.NoUseGPUUUID(), wellknown.NoUseGPUUUIDAlias)
	return use, avoid, errors.Join(useErr, avoidErr)
}

// Accepts reports whether a pod that names the only GPUs to use, none means all,
// and those to avoid, which win, accepts a device. parent is the GPU
// that it is cut from, or its own UUID.
func Accepts(use, avoid []string, id, parent string) bool {
	in := func(list []string) bool { return slices.Contains(list, id) || slices.Contains(list, parent) }
	return (len(use) == 0 || in(use)) && !in(avoid)
}

// uuids is the list under a key or its alias.
func uuids(annotations map[string]string, key, alias string) ([]string, error) {
	list, other := split(annotations[key]), split(annotations[alias])
	switch {
	case len(list) == 0:
		return other, nil
	case len(other) == 0 || slices.Equal(list, other):
		return list, nil
	}
	return nil, differ(key, alias)
}

// Placements are the placements of a pod's annotations for a scheduler: for its
// GPUs and for its node. heddle's annotation covers both; HAMi has one for each.
// Empty is no placement. It fails if heddle's and HAMi's annotations differ, and
// for any other word, also for the words that only HAMi defines.
func Placements(annotations map[string]string) (gpus, nodes config.Placement, err error) {
	both, err := placement(annotations, wellknown.SGPUPlacement)
	errs := []error{err}
	one := func(key string) config.Placement {
		its, err := placement(annotations, key)
		if err == nil && both != "" && its != "" && its != both {
			err = differ(wellknown.SGPUPlacement, key)
		}
		errs = append(errs, err)
		return cmp.Or(both, its)
	}
	gpus, nodes = one(wellknown.HAMiGPUPolicy), one(wellknown.HAMiNodePolicy)
	return gpus, nodes, errors.Join(errs...)
}

func placement(annotations map[string]string, key string) (config.Placement, error) {
	how := config.Placement(strings.TrimSpace(annotations[key]))
	if how == "" || how == config.PlacementBinpack || how == config.PlacementSpread {
		return how, nil
	}
	return "", fmt.Errorf("annotation %s: %q is neither %s nor %s",
		key, wellknown.Clip(string(how)), config.PlacementBinpack, config.PlacementSpread)
}

func differ(key, alias string) error {
	return fmt.Errorf("annotations %s and %s are both present and differ", key, alias)
}

func split(text string) []string {
	var list []string
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word != "" {
			list = append(list, word)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}
