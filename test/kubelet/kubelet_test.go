package kubelet_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/test/kubelet/checkpoint"
)

// The file of a real kubelet v1.37 (see testdata) is the proof that the
// The file was written by the checkpoint code of k8s.io/kubernetes v1.37.0.
func TestCheckpointOfARealKubelet(t *testing.T) {
	const path = "testdata/kubelet_internal_checkpoint"
	data, err := checkpoint.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(data.Entries()) == 0 {
		t.Error("no entries")
	}
	blob, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(blob), string(again)); diff != "" {
		t.Errorf("the format differs (-kubelet +ours):\n%s", diff)
	}
}
