package scheduler

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/sharing"
)

// An account is read once for a node's generation, and who asks may change what
// it gets.
func TestAccountsHoldForAGeneration(t *testing.T) {
	var a accounts
	read := 0
	ask := func(node string, generation int64, pods int) []sharing.Card {
		t.Helper()
		got, err := a.of(node, generation, pods, func() ([]sharing.Card, error) {
			read++
			return []sharing.Card{{VCore: read}}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	ask("a", 1, 3)[0].VCore = 50
	var got []int
	for _, tt := range []struct {
		node       string
		generation int64
		pods       int
	}{{"a", 1, 3}, {"a", 2, 3}, {"b", 2, 3}, {"a", 2, 3}, {"b", 2, 3}, {"a", 1, 3}, {"a", 1, 4}, {"a", 1, 4}} {
		got = append(got, ask(tt.node, tt.generation, tt.pods)[0].VCore)
	}
	if diff := cmp.Diff([]int{1, 2, 3, 2, 3, 4, 5, 5}, got); diff != "" {
		t.Errorf("which reading is answered (-want +got):\n%s", diff)
	}
	a.forget("a")
	if got := ask("a", 1, 4)[0].VCore; got != 6 {
		t.Errorf("a node that was forgotten has reading %d", got)
	}
	none := errors.New("node has no shared cards")
	for range 2 {
		if _, err := a.of("c", 1, 0, func() ([]sharing.Card, error) { return nil, none }); !errors.Is(err, none) {
			t.Errorf("error %v", err)
		}
	}
}
