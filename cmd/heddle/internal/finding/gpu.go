package finding

import (
	"fmt"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/gpu/vendors"
)

// gpus explains GPUs that are unhealthy, or differ from others of their model.
func gpus(m *machine.Machine) []Finding {
	var all []Finding
	usual := usualLinks(m)
	for i := range m.GPUs {
		g := &m.GPUs[i]
		subject := fmt.Sprintf("GPU %d (%s, %s)", g.Index, g.PCI, g.UUID)
		vendor := vendors.All().Of(m, g)
		if vendor == nil {
			vendor = &gpu.Vendor{Link: "link"}
		}
		switch g.Health.State {
		case machine.Healthy:
			all = append(all, nvlinks(g, vendor, subject, usual[g.Product])...)
		case machine.Lost:
			all = append(all, Finding{
				Problem, subject, "lost: " + g.Health.Reason + ". It counts as unhealthy; pods keep the others.",
				vendor.Remedies.Lost,
			})
		case machine.Unhealthy:
			all = append(all, Finding{
				Problem, subject, "unhealthy: " + g.Health.Reason,
				vendor.Remedies.Unhealthy,
			})
		}
	}
	return all
}

// nvlinks explains a healthy GPU with fewer NVLinks than most of its model.
func nvlinks(g *machine.GPU, v *gpu.Vendor, subject string, usual int) []Finding {
	var all []Finding
	if g.Fabric != nil && g.Fabric.State != machine.FabricCompleted {
		all = append(all, Finding{
			Problem, subject, "not registered with the " + v.Link + " fabric: " + g.Fabric.State +
				". Jobs of several GPUs fail or go over PCIe.",
			v.Remedies.Fabric,
		})
	}
	switch n := links(g); {
	case n == 0 && usual > 0:
		all = append(all, Finding{
			Problem, subject, fmt.Sprintf("no %s is up, where others of its model have %d", v.Link, usual),
			v.Remedies.Link + " " + g.PCI + "; until it is back, keep it out of jobs of several GPUs.",
		})
	case n < usual:
		all = append(all, Finding{
			Problem, subject, fmt.Sprintf("%d %ss are up, where others of its model have %d", n, v.Link, usual),
			v.Remedies.Link + " " + g.PCI + ".",
		})
	}
	return all
}

// usualLinks is, by product, the number of NVLinks that most GPUs have; ties go
// to the larger number.
func usualLinks(m *machine.Machine) map[string]int {
	counts := map[string]map[int]int{}
	usual := map[string]int{}
	for i := range m.GPUs {
		g := &m.GPUs[i]
		if counts[g.Product] == nil {
			counts[g.Product] = map[int]int{}
		}
		counts[g.Product][links(g)]++
	}
	for product, byLinks := range counts {
		best := 0
		for n, count := range byLinks {
			if count > byLinks[best] || count == byLinks[best] && n > best {
				best = n
			}
		}
		usual[product] = best
	}
	return usual
}

func links(g *machine.GPU) int {
	n := 0
	for i := range g.NVLinks {
		n += g.NVLinks[i].Links
	}
	return n
}
