package sgpu

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
)

func selector(annotations map[string]string) (*Selector, error) {
	return scheduler().Selector(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}})
}

func TestSelectorLeft(t *testing.T) {
	const two = `{"version":1,"held":2,"free":[{"uuid":"GPU-a"},{"uuid":"GPU-b"},{"uuid":"MIG-1","of":"GPU-c"},{"uuid":"MIG-2","of":"GPU-c"}]}`
	for _, tt := range []struct {
		name, use, avoid, published string
		asked, want                 int64
		err                         string
	}{
		{name: "one by its UUID", use: "GPU-a", published: two, asked: 2, want: 1},
		{name: "one that is held", use: "GPU-x", published: two, asked: 2, want: 0},
		{name: "one of two", use: "GPU-x, GPU-b", published: two, asked: 2, want: 1},
		{name: "all but one", avoid: "GPU-a", published: two, asked: 2, want: 3},
		{name: "to avoid comes first", use: "GPU-a,GPU-b", avoid: "GPU-a", published: two, asked: 2, want: 1},
		{name: "a GPU is all that is cut from it", use: "GPU-c", published: two, asked: 2, want: 2},
		{name: "a MIG device", use: "MIG-2", published: two, asked: 2, want: 1},
		{name: "a pod that came since may have taken one", avoid: "GPU-a", published: two, asked: 3, want: 2},
		{name: "or all", use: "GPU-a", published: two, asked: 8, want: 0},
		{name: "a pod that ends has left nothing yet", use: "GPU-a", published: two, asked: 0, want: 1},
		{name: "a node without the annotation", use: "GPU-a", err: "does not publish"},
		{name: "an invalid annotation", avoid: "GPU-a", published: "{", err: "does not publish"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := wellknown.DefaultDomains()
			s, err := selector(map[string]string{d.UseGPUUUID(): tt.use, wellknown.NoUseGPUUUIDAlias: tt.avoid})
			if s == nil || err != nil {
				t.Fatal(s, err)
			}
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{wellknown.FreeGPUs: tt.published}}}
			got, err := s.Left(n, tt.asked)
			if got != tt.want || (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%d left, want %d; error %v, want %q", got, tt.want, err, tt.err)
			}
		})
	}
	if s, err := selector(map[string]string{wellknown.UseGPUUUIDAlias: " , "}); s != nil || err != nil {
		t.Errorf("an empty list selects %v, error %v", s, err)
	}
}
