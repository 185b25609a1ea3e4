//go:build e2e && linux

package main

import (
	"bytes"
	"errors"
	"os"
	"regexp"
	"testing"

	"github.com/heddle-dev/heddle/test/cluster"
)

// TestMain lets the test binary be what `up` starts of itself.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "workers" {
		main()
		return
	}
	m.Run()
}

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
		`\nGPU0  mlx5_0  PIX\nGPU1  mlx5_3  PIX\n`,
		`\nGPU2  mlx5_4  PIX\nGPU3  mlx5_5  PIX\nGPU4  mlx5_6  PIX\nGPU5  mlx5_9  PIX\n`,
		`\nnvidia\.com/gpu +heddle +2 +2 `,
		`\nshare-\d +Pending\n`,
		`\n\$ heddle why share-\d\n`,
		`\n1 +claim "share", request "share": 0 of 5 devices have capacity vcore 30, vmemory 24Gi free +node1\n`,
		`\nnvidia\.com/vmemory +heddle +79 +79 `,
		`\n7 \(GPU-\w+\)  sgpu  fixed-share  60/100  36/79\.6 +3/16 `,
		`\n7 \(GPU-\w+\)  default/notebook-a  main +30 +24 `,
		`\n7 \(GPU-\w+\)  default/notebook-b  main +20 +8 `,
		`\n7 \(GPU-\w+\)  default/notebook-c  main +10 +4 `,
		`\n\$ curl -s http://127\.0\.0\.1:\d+/node_group .*\n\[\{"name":"`,
		`\n\[\{"name":"switchbox-1","kind":"switchbox","child":\[\{"name":"dragonfly-1","kind":"dragonfly","child":\[\{"name":"h20-1"`,
		`\npretraining +llama +PodGroup +Running +8 of 8 +64 +leaf-su2-rail0 +su2-dgx\[1-8\] +\d+[ms]`,
		`\npretraining +moe +PodGroup +Running +18 of 18 +72 +nvlink-\S+ +r2-tray\[01-18\] +\d+[ms]`,
		`\nleaf-su2-rail0 +leaf +Ready +8 +0 of 64 +pretraining/llama *\n`,
		`\n  nvlink-\S+ +nvlink +Ready +18 +0 of 72 +pretraining/moe *\n`,
		`\nleaf-su1-rail0 +leaf +Ready +8 `,
		`\nleaf-su3-rail\d +leaf +Degraded +8 `,
		`\nleaf-rack2-rail0 +leaf +Ready +18 .*\n  nvlink-\S+ +nvlink +Ready +18 `,
		`\n73 nodes: 72 ready, 1 degraded, 0 not ready; `,
		`\nsu3-dgx5 +miscabled +5 .* su3-rail5 .* su2-rail5 port 9\n`,
		`\nh20-1 +Ready .* switchbox\.dragonfly +switchbox-1 +dragonfly-1 *\n`,
		`\nmoe-0 +r2-tray01 +heddle-scheduler\n`,
		`\nmoe-17 +r2-tray18 +heddle-scheduler\n`,
		`\nr1-tray02 +Ready .* leaf\.nvlink +leaf-rack1-rail0 +nvlink-\S+ *\n`,
		`\n# The page: open http://127\.0\.0\.1:\d+/ and choose a gang\n`,
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
