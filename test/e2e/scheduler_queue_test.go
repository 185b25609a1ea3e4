//go:build e2e && linux

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestLargeGangDoesNotStarve lets small gangs come and go on eight nodes that a large
// one needs all at once. After reserveAfter each node that a small one leaves is kept.
func TestLargeGangDoesNotStarve(t *testing.T) {
	f := newFleet(t, "gpuScheduler.gangs.reserveAfter=3s")
	for _, name := range numbered("starve-", 8) {
		f.gpus(t, name, 8, nil)
	}
	small := numbered("small", 8)
	for _, name := range small[:4] {
		f.gang(t, name, 2, 8, nil)
		f.running(t, 30*time.Second, name+"-", 2)
	}
	f.gang(t, "large", 8, 8, nil)
	f.rejected(t, "large", 8, "rejected by podgroup large")
	// The member that is tried shows it at once.
	eventually(t, 30*time.Second, func() string {
		for _, p := range f.podsOf(t, "large") {
			if strings.Contains(whyNot(&p), "room is reserved from") {
				return ""
			}
		}
		return "no room is reserved"
	})
	for i, name := range small[4:] {
		f.gang(t, name, 2, 8, nil)
		eventually(t, 30*time.Second, func() string {
			for _, p := range f.podsOf(t, name+"-") {
				if p.Spec.NodeName == "" && whyNot(&p) == "" {
					return p.Name + " was not tried"
				}
			}
			return ""
		})
		for at := range 2 {
			err := f.client.CoreV1().Pods(f.namespace).Delete(t.Context(), fmt.Sprintf("%s-%d", small[i], at),
				metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
			if err != nil {
				t.Fatal(err)
			}
		}
		if i == 3 { // All that ran before it have ended.
			f.running(t, time.Minute, "large-", 8)
			return
		}
		if on := f.bound(t, name+"-"); len(on) > 0 {
			t.Fatalf("a younger gang takes the room that the large one waits for: %v", on)
		}
	}
}
