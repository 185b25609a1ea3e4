package plugin

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// What is ignored is told of a gang that got its nodes at once as well, and not
// again by every scheduler that starts.
func TestRemarkOfAGangThatNeverWaited(t *testing.T) {
	for _, tt := range []struct {
		name string
		age  time.Duration
		want []string
	}{
		{"young", time.Second, []string{"a GangRemark annotation gang.scheduling.koordinator.sh/mode is ignored; " +
			"annotation gang.scheduling.koordinator.sh/total-number is ignored"}},
		{"old", time.Hour, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, h := quiet(t)
				a := podOf("a", nil)
				a.Spec.NodeName, a.CreationTimestamp = "n", metav1.NewTime(time.Now().Add(-tt.age))
				a.Annotations = map[string]string{
					wellknown.KoordinatorName: "x", wellknown.KoordinatorMinAvailable: "1", wellknown.KoordinatorMode: "NonStrict",
					wellknown.KoordinatorTotalNumber: "2",
				}
				h.known(t, a)
				p.come(a)
				p.notice()
				p.notice()
				if diff := cmp.Diff(tt.want, h.events); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}
