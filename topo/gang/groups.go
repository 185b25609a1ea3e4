package gang

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// maxGroupsText is the longest annotation that can list MaxGroups gangs, in
// bytes: two names of 253 characters, a slash, quotes, a comma and a blank.
const maxGroupsText = MaxGroups * (2*253 + 5)

// readGroups reads a JSON list of "namespace/name". The gang itself is added,
// what is there twice is dropped.
func readGroups(text string, self types.NamespacedName) ([]types.NamespacedName, error) {
	if len(text) > maxGroupsText {
		return nil, fmt.Errorf("%d bytes are more than %d gangs need", len(text), MaxGroups)
	}
	var words []string
	if err := json.Unmarshal([]byte(text), &words); err != nil {
		return nil, fmt.Errorf(`%q is no list such as ["namespace/gang-a", "namespace/gang-b"]`, wellknown.Clip(text))
	}
	groups := make([]types.NamespacedName, 0, len(words)+1)
	if self.Name != "" {
		groups = append(groups, self)
	}
	for _, word := range words {
		namespace, name, slash := strings.Cut(strings.TrimSpace(word), "/")
		if !slash {
			namespace, name = self.Namespace, namespace
		}
		if !isName(namespace) || !isName(name) || strings.Contains(namespace, ".") {
			return nil, fmt.Errorf("%q is no namespace/name", wellknown.Clip(word))
		}
		groups = append(groups, types.NamespacedName{Namespace: namespace, Name: name})
	}
	slices.SortFunc(groups, compareKeys)
	groups = slices.Compact(groups)
	if len(groups) > MaxGroups {
		return nil, fmt.Errorf("%d gangs; at most %d", len(groups), MaxGroups)
	}
	if len(groups) == 0 {
		return nil, errors.New("lists no gang")
	}
	return groups, nil
}

func compareKeys(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
