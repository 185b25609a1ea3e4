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
	ask := func(node string, generation int64) []sharing.Card {
		t.Helper()
		got, err := a.of(node, generation, func() ([]sharing.Card, error) {
			read++
			return []sharing.Card{{VCore: read}}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	ask("a", 1)[0].VCore = 50
	var got []int
	for _, tt := range []struct {
		node       string
		generation int64
	}{{"a", 1}, {"a", 2}, {"b", 2}, {"a", 2}, {"b", 2}, {"a", 1}} {
		got = append(got, ask(tt.node, tt.generation)[0].VCore)
	}
	if diff := cmp.Diff([]int{1, 2, 3, 2, 3, 4}, got); diff != "" {
		t.Errorf("which reading is answered (-want +got):\n%s", diff)
	}
	a.forget("a")
	if got := ask("a", 1)[0].VCore; got != 5 {
		t.Errorf("a node that was forgotten has reading %d", got)
	}
	none := errors.New("node has no shared cards")
	for range 2 {
		if _, err := a.of("c", 1, func() ([]sharing.Card, error) { return nil, none }); !errors.Is(err, none) {
			t.Errorf("error %v", err)
		}
	}
}
