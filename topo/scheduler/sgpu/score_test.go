package sgpu

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/kube-scheduler/framework"

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
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := topologyScore(affinity.ParseTable(tt.text), tt.gpus, Weights{2, 0.5}); got != tt.want {
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

func FuzzTopology(f *testing.F) {
	f.Add(`{"1":{"score":0,"loss":59750,"hcas":1},"2":{"score":1,"loss":2}}`, int64(2))
	f.Add(`{"2":null}`, int64(2))
	f.Fuzz(func(t *testing.T, text string, gpus int64) {
		if got := topologyScore(affinity.ParseTable(text), gpus, Weights{MaxWeight, MaxWeight}); got != noScore && (got > MaxWeight*affinity.MaxScore || got < -MaxWeight*affinity.MaxScore) {
			t.Errorf("score %d", got)
		}
	})
}
