package sgpu

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/affinity"
)

func TestTopologyScore(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		gpus       int64
		want       int64
	}{
		{"score less half the loss", `{"2":{"score":600,"loss":100,"hcas":2}}`, 2, 2*600 - 50},
		{"no entry", `{"1":{"score":600,"loss":100}}`, 2, noScore},
		{"half an entry", `{"2":{"score":600}}`, 2, noScore},
		{"no text", ``, 2, noScore},
		{"no table", `[1]`, 2, noScore},
		{"too large", `{"2":{"score":9223372036854775807,"loss":0}}`, 2, noScore},
		{"negative", `{"2":{"score":5,"loss":-5}}`, 2, noScore},
		{"of more GPUs than a node has", `{"2000000000":{"score":5,"loss":5},"2":{"score":5,"loss":10}}`, 2, 5},
		{"of no number", `{"all":{"score":5,"loss":5},"-1":{"score":5,"loss":5}}`, -1, noScore},
		{"written in two ways", `{"2":{"score":5,"loss":0},"02":{"score":9,"loss":0},"+2":{"score":9,"loss":0}}`, 2, 10},
		{"between two entries", `{"1":{"score":5,"loss":5},"3":{"score":5,"loss":5}}`, 2, noScore},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := (&published{topology: affinity.ParseTable(tt.text)}).score("nvidia.com/gpu", tt.gpus, Weights{2, 0.5}); got != tt.want {
				t.Errorf("%d, want %d", got, tt.want)
			}
		})
	}
}

// GPUs count as what is left of them, in the scarcer of compute and memory.
func TestUse(t *testing.T) {
	shared := func(gpus ...allocation.GPU) *info {
		all := allocation.NodeGPUs{Version: 1, GPUs: gpus}
		return holding(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{wellknown.SharedGPUs: all.String()}}})
	}
	gpu := func(uuid string, memory int64) allocation.GPU {
		return allocation.GPU{UUID: uuid, MemoryMiB: memory, Slots: 4, Healthy: true}
	}
	asks, err := scheduler().Request(pod("p", 30, nil))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name         string
		node         *info
		without, use Use
	}{
		{"whole GPUs", &info{node: node(0), generation: 1, allocatable: 8, requested: 3}, Use{Total: 1000, Idle: 600, Load: 50}, Use{1000, 570, 70, 70, 65}},
		{"no GPUs", holding(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}), Use{Load: 100}, Use{Load: 100}},
		{"an unhealthy one", holding(node(0)), Use{Total: 200, Idle: 100, Load: 50}, Use{200, 70, 70, 70, 65}},
		{"too little memory", shared(gpu("GPU-a", 1000)), Use{Total: 100, Idle: 100}, Use{Total: 100, Idle: 100}},
		{"memory is scarcer", shared(gpu("GPU-a", 5<<10)), Use{Total: 100, Idle: 100}, Use{100, 20, 20, 20, 80}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := scheduler()
			if diff := cmp.Diff([]Use{tt.without, tt.use}, []Use{s.Use(nil, tt.node), s.Use(asks, tt.node)}); diff != "" {
				t.Errorf("without and with a share (-want +got):\n%s", diff)
			}
		})
	}
}

func FuzzTopology(f *testing.F) {
	f.Add(`{"1":{"score":0,"loss":59750,"hcas":1},"2":{"score":1,"loss":2}}`, int64(2))
	f.Add(`{"2":null}`, int64(2))
	f.Fuzz(func(t *testing.T, text string, gpus int64) {
		if got := (&published{topology: affinity.ParseTable(text)}).score("nvidia.com/gpu", gpus, Weights{MaxWeight, MaxWeight}); got != noScore && (got > MaxWeight*affinity.MaxScore || got < -MaxWeight*affinity.MaxScore) {
			t.Errorf("score %d", got)
		}
	})
}
