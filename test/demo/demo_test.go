//go:build e2e && linux

package main

import (
	"bytes"
	"errors"
	"regexp"
	"testing"

	"github.com/heddle-dev/heddle/test/cluster"
)

// TestDemo is `make demo` and `make demo-down`, read as a person would.
func TestDemo(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"up"}, &out, t.Output()); err != nil {
		t.Fatal(err)
	}
	t.Log(out.String())
	for _, want := range []string{
		`\nnode1 +Ready .* NVIDIA-H100-80GB-HBM3 +8 +training +8\n`,
		`\nh20-1 +Ready .* NVIDIA-H20 +8 +inference `,
		`\nstorage1 +<none> +<none>\n`,
		`\ntraining-\S+ +node1 +Running\n`,
		`\ninference-\S+ +h20-\d +Running\n`,
		`\nweb-\S+ +storage1 +Running\n`,
		`\nGPU0  mlx5_0  PIX\nGPU1  mlx5_3  PIX\nGPU2  mlx5_4  PIX\nGPU3  mlx5_5  PIX\n`,
		`\nnvidia\.com/gpu +heddle +7 +7 `,
		`\nnvidia\.com/vmemory +heddle +79 +79 `,
		`\n7 \(GPU-\w+\)  sgpu  fixed-share  60/100  36/79\.6 +3/16 `,
		`\n7 \(GPU-\w+\)  default/notebook-a  main +30 +24 `,
		`\n7 \(GPU-\w+\)  default/notebook-b  main +20 +8 `,
		`\n7 \(GPU-\w+\)  default/notebook-c  main +10 +4 `,
		`\nexport KUBECONFIG=\S+`,
		`\nmake demo-down\n`,
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("the output lacks %s", want)
		}
	}
	out.Reset()
	if err := run(t.Context(), []string{"down"}, &out, t.Output()); err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.Open(cluster.Options{Name: name}); !errors.Is(err, cluster.ErrNotUp) {
		t.Errorf("after down: %v", err)
	}
}
