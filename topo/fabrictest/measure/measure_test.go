package measure

import (
	"os"
	"testing"
)

func TestReason(t *testing.T) {
	for name, want := range map[string]string{
		"perftest-unreachable.txt": "Failed to modify QP 19 to RTR; Unable to Connect the HCA's through the link",
		"perftest-down.txt":        "Port number 1 state is Down; Couldn't set the link layer; Couldn't get context for the device",
		"mpi-allreduce.txt":        "#",
	} {
		text, err := os.ReadFile("../testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if got := reason(string(text)); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
