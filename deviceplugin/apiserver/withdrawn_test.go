package apiserver

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/test/nodeapi"
)

func TestWithdraw(t *testing.T) {
	const label = "nvidia.com/gpu.product"
	list := types.NamespacedName{Namespace: "heddle-system", Name: "heddle-withdrawn-nodes"}
	later, earlier := time.Now().Add(time.Hour).Format(time.RFC3339), time.Now().Add(-time.Hour).Format(time.RFC3339)
	until := time.Now().Add(time.Minute)
	for _, tt := range []struct {
		name           string
		entered        map[string]string
		nodes, percent int
		full           string
	}{
		{"the first of one node", nil, 1, 10, ""},
		{"two of ten", map[string]string{"a": later}, 10, 10, "1 of 10 nodes are withdrawn, and health.maxWithdrawnPercent is 10"},
		{"two of twenty", map[string]string{"a": later}, 20, 10, ""},
		{"three of 29", map[string]string{"a": later, "b": later}, 29, 10, "2 of 29 nodes"},
		{"one more than half", map[string]string{"a": later}, 2, 50, "1 of 2 nodes"},
		{"all", map[string]string{"a": later}, 2, 100, ""},
		{"nodes without the label", map[string]string{"a": later}, 0, 100, "1 of 0 nodes"},
		{"it is entered itself", map[string]string{node: later}, 1, 10, ""},
		{"its entry has expired, and another one has its place", map[string]string{node: earlier, "a": later}, 10, 10, "1 of 10"},
		{"expired and invalid entries", map[string]string{"a": earlier, "b": "", "c": "x"}, 10, 10, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, k := newServer(t)
			s.Withdrawn = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1"}, Data: tt.entered}
			s.Nodes, s.TableOf = tt.nodes, label
			full, err := k.Withdraw(t.Context(), list, label, tt.percent, until)
			if err != nil || !strings.HasPrefix(full, tt.full) || (full == "") != (tt.full == "") {
				t.Fatalf("got %q, %v, want %q", full, err, tt.full)
			}
			if entered := s.Withdrawn.Data[node] == until.UTC().Format(time.RFC3339); entered != (full == "") {
				t.Errorf("entries %v", s.Withdrawn.Data)
			}
		})
	}
}

// TestWithdrawAtOnce has many nodes ask at the same time: as many are withdrawn as may be.
func TestWithdrawAtOnce(t *testing.T) {
	s := nodeapi.New(t, node)
	s.Withdrawn = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1"}}
	s.Nodes, s.TableOf = 30, "gpu"
	var group errgroup.Group
	for i := range 12 {
		k := New(s.Client(), "gpu-"+string(rune('a'+i)), slog.New(slog.DiscardHandler))
		group.Go(func() error {
			for {
				full, err := k.Withdraw(t.Context(), types.NamespacedName{Namespace: "n", Name: "m"}, "gpu", 10, time.Now().Add(time.Hour))
				if err == nil { // Else others were faster again and again.
					t.Log(full)
					return nil
				}
			}
		})
	}
	_ = group.Wait()
	if got := len(s.Withdrawn.Data); got != 3 {
		t.Errorf("%d of 30 nodes are withdrawn, want 3", got)
	}
}

func TestWithdrawWithoutAList(t *testing.T) {
	_, k := newServer(t)
	if full, err := k.Withdraw(t.Context(), types.NamespacedName{Name: "m"}, "gpu", 10, time.Now()); err == nil {
		t.Errorf("withdrawn without a list, %q", full)
	}
}
