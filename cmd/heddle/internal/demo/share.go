package demo

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// share is the request of a container for a part of one GPU.
type share struct {
	pod            string
	vcore, vmemory int64
}

// shares allocates parts of the two GPUs that a node shares, in the order of the pods, with the
// function of heddle-scheduler and heddle-device-plugin. It returns a table of each pod's share,
// and why the last pod waits.
func shares(pods []share) (string, error) {
	const memory = 81559 // MiB, of an H100.
	gpus := []quota.GPU{
		{UUID: "GPU-6172ab2d", Index: 6, MemoryMiB: memory, Slots: 16, Zone: 1},
		{UUID: "GPU-d1c0ffee", Index: 7, MemoryMiB: memory, Slots: 16, Zone: 1},
	}
	c := config.Default()
	rows := [][]string{{"POD", "VCORE", "VMEMORY", "GPU", "TAKEN OF IT AFTERWARDS"}}
	var waits strings.Builder
	for _, p := range pods {
		limits := corev1.ResourceList{
			corev1.ResourceName(c.Resources.SGPU):    *resource.NewQuantity(1, resource.DecimalSI),
			corev1.ResourceName(c.Resources.VCore):   *resource.NewQuantity(p.vcore, resource.DecimalSI),
			corev1.ResourceName(c.Resources.VMemory): *resource.NewQuantity(p.vmemory, resource.DecimalSI),
		}
		request, err := quota.ParseRequest(limits, nil, &c)
		if err != nil {
			return "", fmt.Errorf("pod %s: %w", p.pod, err)
		}
		row := []string{p.pod, fmt.Sprint(p.vcore), fmt.Sprintf("%d GiB", p.vmemory), "-", "-"}
		if at, ok := quota.Place(gpus, &request, config.PlacementBinpack, nil); ok {
			g := &gpus[at[0]]
			claim := quota.Claim{Share: g.Share(&request), Policy: request.Policy}
			g.Charge(quota.Peak([]quota.Claim{claim}, nil))
			claim.Mark(g)
			row[3] = fmt.Sprint(g.Index)
			row[4] = fmt.Sprintf("%d %% and %d of %d MiB", g.VCore, g.UsedMiB, g.MemoryMiB)
		} else {
			reason := strings.ReplaceAll(quota.Explain(gpus, &request), ". ", ".\n  ")
			fmt.Fprintf(&waits, "%s waits: %s.\n", p.pod, reason)
		}
		rows = append(rows, row)
	}
	return cli.Table(rows) + "\n" + waits.String(), nil
}
