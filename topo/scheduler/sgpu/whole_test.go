package sgpu_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
)

func TestLeft(t *testing.T) {
	const two = `{"version":1,"held":2,"free":[{"uuid":"GPU-a"},{"uuid":"GPU-b"},{"uuid":"MIG-1","of":"GPU-c"},{"uuid":"MIG-2","of":"GPU-c"}]}`
	for _, tt := range []struct {
		name, use, avoid, says string
		asked, want            int64
		err                    string
	}{
		{name: "one by its UUID", use: "GPU-a", says: two, asked: 2, want: 1},
		{name: "one that is held", use: "GPU-x", says: two, asked: 2, want: 0},
		{name: "one of two", use: "GPU-x, GPU-b", says: two, asked: 2, want: 1},
		{name: "all but one", avoid: "GPU-a", says: two, asked: 2, want: 3},
		{name: "to avoid comes first", use: "GPU-a,GPU-b", avoid: "GPU-a", says: two, asked: 2, want: 1},
		{name: "a GPU is all that is cut from it", use: "GPU-c", says: two, asked: 2, want: 2},
		{name: "a MIG device", use: "MIG-2", says: two, asked: 2, want: 1},
		{name: "who came since may have taken one", avoid: "GPU-a", says: two, asked: 3, want: 2},
		{name: "or all", use: "GPU-a", says: two, asked: 8, want: 0},
		{name: "who goes has left nothing yet", use: "GPU-a", says: two, asked: 0, want: 1},
		{name: "a node that says nothing", use: "GPU-a", err: "does not say"},
		{name: "nonsense", avoid: "GPU-a", says: "{", err: "free GPUs: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := wellknown.DefaultDomains()
			c, err := sgpu.ReadChosen(map[string]string{d.UseGPUUUID(): tt.use, wellknown.NoUseGPUUUIDAlias: tt.avoid}, d)
			if c == nil || err != nil {
				t.Fatal(c, err)
			}
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{wellknown.FreeGPUs: tt.says}}}
			var w sgpu.Whole
			got, err := w.Left(c, n, tt.asked)
			if got != tt.want || (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%d left, want %d; error %v, want %q", got, tt.want, err, tt.err)
			}
		})
	}
	if c, err := sgpu.ReadChosen(map[string]string{wellknown.UseGPUUUIDAlias: " , "}, wellknown.DefaultDomains()); c != nil || err != nil {
		t.Errorf("an empty list chooses %v, error %v", c, err)
	}
}
