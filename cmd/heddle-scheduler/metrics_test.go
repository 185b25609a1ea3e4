package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// figures are all that the plugin shows: name and labels, and the value of a
// gauge or counter, or the count of a histogram.
func (w *cluster) figures() map[string]float64 {
	w.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			name := f.GetName()
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			switch {
			case m.GetGauge() != nil:
				all[name] = m.GetGauge().GetValue()
			case m.GetCounter() != nil:
				all[name] = m.GetCounter().GetValue()
			default:
				all[name] = float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return all
}

// shows waits until the metrics have these values.
func (w *cluster) shows(want map[string]float64) {
	w.Helper()
	deadline := time.After(5 * time.Minute)
	for {
		got := w.figures()
		var wrong []string
		for _, name := range slices.Sorted(maps.Keys(want)) {
			if value, ok := got[name]; !ok || value != want[name] {
				wrong = append(wrong, fmt.Sprintf("%s is %v (%v), want %v", name, value, ok, want[name]))
			}
		}
		if len(wrong) == 0 {
			return
		}
		select {
		case <-deadline:
			w.Fatalf("%s\nof %v", strings.Join(wrong, "\n"), got)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func TestMetrics(t *testing.T) {
	m := &master{}
	names := []string{"n0", "n1", "n2", "n3"}
	m.set(leaves(2, names...))
	var nodes []*corev1.Node
	for _, name := range names {
		nodes = append(nodes, node(name, 4))
	}
	w := start(t, withMaster(t, m, ""), nodes...)
	m.await()
	w.gang("x", 2, 4, 2)
	w.shows(map[string]float64{
		"heddle_scheduler_gangs{Starting}": 1, "heddle_scheduler_gangs{Queued}": 0, "heddle_scheduler_gangs{Running}": 0,
		"heddle_scheduler_gang_duration_seconds":              1,
		"heddle_scheduler_gang_plan_duration_seconds{placed}": 1,
		"heddle_scheduler_gangs_placed_total{leaf}":           1,
		"heddle_scheduler_gang_rejections_total":              0,
		"heddle_scheduler_map_fresh":                          1,
		// As the first cycle saw it.
		"heddle_scheduler_gpus_free": 16, "heddle_scheduler_gpus_free_whole": 16, "heddle_scheduler_largest_gang_gpus{leaf}": 8,
	})
	w.gang("y", 3, 4, 3)
	w.until("y rejected", func(pods map[string]*corev1.Pod) bool {
		return strings.Contains(why(pods["y-0"]), "rejected by podgroup y")
	})
	w.shows(map[string]float64{"heddle_scheduler_gangs{Queued}": 1, "heddle_scheduler_gang_rejections_total": 1})
	if since, ok := w.figures()["heddle_scheduler_gang_rejected_seconds{default,y}"]; !ok || since <= 0 {
		t.Errorf("y has been rejected for %v s (%v)", since, ok)
	}
	w.delete("x-0")
	w.whole("y", 3)
	w.shows(map[string]float64{
		"heddle_scheduler_gang_duration_seconds": 2, "heddle_scheduler_gangs_placed_total{none}": 1,
	})
	w.until("y is not rejected any more", func(map[string]*corev1.Pod) bool {
		_, rejected := w.figures()["heddle_scheduler_gang_rejected_seconds{default,y}"]
		return !rejected
	})
}
