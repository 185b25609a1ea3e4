package fit_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/scheduler/fit"
)

// lasting is a pod of two GPUs that runs since now and states for how long; 0 for
// nothing.
func lasting(uid string, d time.Duration) *corev1.Pod {
	p := pod(uid, "1", "2", 5)
	p.Status.StartTime = new(metav1.Now())
	if d > 0 {
		p.Annotations = map[string]string{wellknown.ExpectedDuration: d.String()}
	}
	return p
}

// first marks a pod of a gang that runs in part.
func first(p *corev1.Pod) *corev1.Pod {
	p.Labels["first"] = "true"
	return p
}

// A reservation in advance keeps out what would not be gone when it starts, up to what
// it needs beside the pods that stay.
func TestReservedInAdvance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now().Add(2 * time.Hour)
		six := func(leaving ...types.UID) []fit.Reservation {
			r := fit.Reservation{UID: "big", Priority: 5, Amounts: fit.Amounts{gpu: 6}, Start: start, Leaving: map[types.UID]bool{}}
			for _, uid := range leaving {
				r.Leaving[uid] = true
			}
			return []fit.Reservation{r}
		}
		for _, tt := range []struct {
			name     string
			node     *info
			reserved []fit.Reservation
			pod      *corev1.Pod
			want     int32
		}{
			{"of a gang that runs in part", node(), six(), first(lasting("new", 0)), 4},
			{"beside it", node(), six(), lasting("new", 0), 1},
			{"beside it, while another leaves", node(lasting("a", 0)), six("a"), lasting("new", 0), 1},
			{"two have come that stay", node(lasting("a", 0), lasting("b", 0)), six(), lasting("new", 0), 0},
			{"ends before", node(), six(), lasting("new", time.Hour), 4},
			{"ends later", node(), six(), lasting("new", 3*time.Hour), 1},
			{"beside one that ends before", node(lasting("a", time.Hour)), six(), lasting("new", 0), 1},
			{"of a higher priority", node(), six(), func() *corev1.Pod { p := lasting("new", 0); p.Spec.Priority = new(int32(9)); return p }(), 4},
		} {
			q := fit.Query{
				Nodes: []framework.NodeInfo{tt.node}, Reservations: fit.Reservations{"n": tt.reserved},
				Asker: fit.Asker{
					Priority: *tt.pod.Spec.Priority, End: fit.EndOf(tt.pod, time.Now()), First: tt.pod.Labels["first"] != "",
				},
			}
			var table fit.Table
			if diff := cmp.Diff([]int32{tt.want}, table.Count(&q, fit.ClassOf(tt.pod, nil), nil)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.name, diff)
			}
		}
	})
}

// What is free later is what is free now and what leaves until then.
func TestFreeLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		terminating := lasting("c", 0)
		terminating.DeletionTimestamp = new(metav1.NewTime(now.Add(30 * time.Second)))
		n := []framework.NodeInfo{node(lasting("a", 3*time.Hour), lasting("b", 0), terminating)}
		for at, want := range map[time.Duration]int32{0: 1, time.Minute: 2, time.Hour: 3, 4 * time.Hour: 4} {
			q := fit.Query{Nodes: n, Asker: fit.Asker{Gone: fit.GoneBy(now.Add(at), fit.Departures(n, now)), Ahead: true}}
			var table fit.Table
			if diff := cmp.Diff([]int32{want}, table.Count(&q, fit.ClassOf(lasting("new", 0), nil), nil)); diff != "" {
				t.Errorf("in %s (-want +got):\n%s", at, diff)
			}
		}
	})
}

func TestDuration(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		deadline   int64
		want       time.Duration
	}{
		{"none", "", 0, 0},
		{"annotation", "90m", 0, 90 * time.Minute},
		{"deadline", "", 60, time.Minute},
		{"both", "1h", 60, time.Minute},
		{"illegible", "soon", 0, 0},
		{"negative", "-1h", 60, time.Minute},
	} {
		p := pod("a", "1", "2", 0)
		p.Annotations = map[string]string{wellknown.ExpectedDuration: tt.text}
		if tt.deadline > 0 {
			p.Spec.ActiveDeadlineSeconds = &tt.deadline
		}
		if got := fit.Duration(p); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}
