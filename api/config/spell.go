package config

import (
	"fmt"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
)

// hint names the key that a typist may have meant, or all there are.
func hint(key string, fields []reflect.StructField) string {
	all := make([]string, len(fields))
	for i, f := range fields {
		if near(f.Name, key) {
			return fmt.Sprintf("did you mean %s?", f.Name)
		}
		all[i] = f.Name
	}
	return "known here: " + strings.Join(all, ", ")
}

// near reports whether a typist may have meant word: another case, a longer or
// shorter form ("ethernet" for "ether"), or one slip.
func near(word, typed string) bool {
	w, s := strings.ToLower(word), strings.ToLower(typed)
	if w == s {
		return true
	}
	if len(w) < 3 || len(s) < 3 {
		return false
	}
	return strings.HasPrefix(w, s) || strings.HasPrefix(s, w) || slip(w, s)
}

// slip reports whether two words are equal but for one letter changed, added or
// left out, or for two neighbors swapped.
func slip(a, b string) bool {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return len(a) <= 1 && len(b) <= 1 || len(a) == 2 && len(b) == 2 && a[0] == b[1] && a[1] == b[0]
}

// quoted lists two words or more for a message: "a", "b" or "c".
func quoted(words []string) string {
	last := len(words) - 1
	return `"` + strings.Join(words[:last], `", "`) + `" or "` + words[last] + `"`
}

func kind(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a section"
	case yaml.SequenceNode:
		return "a list"
	default:
	}
	switch n.ShortTag() {
	case "!!int", "!!float":
		return "a number"
	case "!!bool":
		return "true or false"
	case "!!str":
		return "a text"
	}
	return "a " + strings.TrimPrefix(n.ShortTag(), "!!")
}
