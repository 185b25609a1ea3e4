package sharing

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/names"
)

// UUIDs are the GPUs that a pod's annotations name, sorted and without doubles:
// use are the only ones that it accepts, none means all; avoid are those that
// it refuses, whatever use says. It fails if an annotation and its alias
// differ: one of the two owners would be surprised.
func UUIDs(annotations map[string]string, d names.Domains) (use, avoid []string, err error) {
	use, useErr := uuids(annotations, d.UseGPUUUID(), names.UseGPUUUIDAlias)
	avoid, avoidErr := uuids(annotations, d.NoUseGPUUUID(), names.NoUseGPUUUIDAlias)
	return use, avoid, errors.Join(useErr, avoidErr)
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
