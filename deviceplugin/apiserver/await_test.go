package apiserver

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestAwait(t *testing.T) {
	const timeout = 50 * time.Millisecond
	for _, tt := range []struct {
		name  string
		after time.Duration
		want  int
		took  time.Duration
	}{
		{"there already", 0, 1, 0},
		{"soon enough", timeout - 1, 1, timeout - 1},
		{"too late", timeout + 1, 0, timeout},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &Client{podWatch: newPodWatch()}
				match := func(p *corev1.Pod) bool { return p.Name == "one" }
				if got := c.Await(timeout, match); got != nil {
					t.Errorf("%v before the pods are known", got)
				}
				_ = c.podWatch.Replace([]any{podNamed("other")}, "1")
				if tt.after == 0 {
					_ = c.podWatch.Add(podNamed("one"))
				}
				time.AfterFunc(tt.after, func() { _ = c.podWatch.Add(podNamed("one")) })
				began := time.Now()
				if got := c.Await(timeout, match); len(got) != tt.want || time.Since(began) != tt.took {
					t.Errorf("%d pods after %s, want %d after %s", len(got), time.Since(began), tt.want, tt.took)
				}
				<-time.After(time.Second)
			})
		})
	}
}
