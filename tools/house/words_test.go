package main

import (
	"slices"
	"testing"
)

func TestSplit(t *testing.T) {
	for name, want := range map[string][]string{
		"tellNode": {"tell", "node"}, "GPUCard": {"gpu", "card"}, "newMPSCard": {"new", "mps", "card"},
		"TestBindings_of": {"test", "bindings", "of"}, "x": {"x"}, "UUIDs": {"uuids"}, "told": {"told"},
	} {
		if got := split(name); !slices.Equal(got, want) {
			t.Errorf("split(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestFindings(t *testing.T) {
	rules, keep, err := readVocabulary("text of ours: heddle's\ntext whom: the pod\nname tell: report\nkeep a/: whom\n")
	if err != nil {
		t.Fatal(err)
	}
	const src = "package p\n\n// F is for whom it may be, a plugin of\n// it.\nfunc tellF() { foretell := 1; _ = foretell }\n"
	found, err := nameFindings("a/b.go", []byte(src), rules)
	if err != nil || len(found) != 1 || found[0].line != 5 || found[0].word != "tell" {
		t.Errorf("names: %v, %v", found, err)
	}
	found = textFindings("a/b.go", src, rules)
	if len(found) != 1 || found[0].line != 3 {
		t.Errorf("text: %v", found)
	}
	if !kept(keep, "a/b.go", "whom") || kept(keep, "b/a.go", "whom") || kept(keep, "a/b.go", "tell") {
		t.Error("exceptions do not hold for the word below the folder alone")
	}
}

func TestVocabularyIsSound(t *testing.T) {
	rules, _, err := readVocabulary(vocabulary)
	if err != nil || len(rules) < 40 {
		t.Fatalf("%d rules, %v", len(rules), err)
	}
	if _, _, err := readVocabulary("text whom\n"); err == nil {
		t.Error("a line without a replacement is taken")
	}
}
