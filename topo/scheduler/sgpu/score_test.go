package sgpu

import (
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-scheduler/framework"

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
	for _, tt := range []struct {
		name         string
		scores, want []int64
	}{
		{"a node that publishes nothing never wins", []int64{noScore, noScore + full, -50, 50}, []int64{0, 0, 1, 100}},
		{"of nodes that all publish nothing the fuller one", []int64{noScore + 25, noScore, noScore + 50}, []int64{50, 1, 100}},
		{"equal", []int64{7, 7}, []int64{100, 100}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var scores framework.NodeScoreList
			for _, s := range tt.scores {
				scores = append(scores, framework.NodeScore{Score: s})
			}
			Normalize(scores)
			var got []int64
			for i := range scores {
				got = append(got, scores[i].Score)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("normalized (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAllEqual(t *testing.T) {
	const table, better = `{"8":{"score":600,"loss":0}}`, `{"8":{"score":700,"loss":0}}`
	type node struct {
		gpus, requested int64
		table           string
	}
	for _, tt := range []struct {
		name  string
		gpus  int64
		nodes []node
		want  bool
	}{
		{"equal nodes, all of whose GPUs the pod takes", 8, []node{{8, 0, table}, {8, 0, table}}, true},
		{"nodes that publish nothing", 8, []node{{8, 0, ""}, {8, 0, ""}}, true},
		{"more than half of equal nodes", 5, []node{{8, 2, ""}, {8, 2, ""}}, true},
		{"a better topology", 8, []node{{8, 0, table}, {8, 0, better}}, false},
		{"one that publishes nothing", 8, []node{{8, 0, ""}, {8, 0, table}}, false},
		{"more GPUs in use", 5, []node{{8, 0, ""}, {8, 2, ""}}, false},
		{"room for another pod on a node", 4, []node{{8, 0, ""}, {8, 0, ""}}, false},
		{"room for another pod on one node", 8, []node{{8, 0, ""}, {16, 0, ""}}, false},
		{"no nodes", 8, nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var nodes []framework.NodeInfo
			for i, n := range tt.nodes {
				object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
					Name: strconv.Itoa(i), Annotations: map[string]string{wellknown.GPUTopology: n.table},
				}}
				nodes = append(nodes, &info{node: object, generation: int64(i + 1), allocatable: n.gpus, requested: n.requested})
			}
			got := scheduler().AllEqual("nvidia.com/gpu", tt.gpus, Weights{1, 1}, nodes)
			if got != tt.want {
				t.Errorf("%t, want %t", got, tt.want)
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
