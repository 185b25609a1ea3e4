package doctor

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/finding"
	"github.com/heddle-dev/heddle/deviceplugin/agent/report"
)

// resourceNames are names of resources; an empty gpu and nil hcas are not known
// to differ from the built-in ones.
type resourceNames struct {
	gpu  string
	hcas []string
}

// namesInUse are the device plugin's, else the Node's; notes say where they are
// guessed.
func namesInUse(there *onNode, plugin *answer) (n resourceNames, notes []finding.Finding) {
	switch {
	case plugin != nil && plugin.report != nil:
		return namesServed(plugin.report), nil
	case there != nil:
		n = namesOffered(there.node)
		return n, n.guessed()
	}
	return n, nil
}

// namesServed are those that the device plugin serves; it knows them best.
func namesServed(p *report.Report) resourceNames {
	n := resourceNames{hcas: []string{}}
	for i := range p.Resources {
		switch r := &p.Resources[i]; {
		case r.Former, strings.Contains(r.Name, "/mig-"):
		case r.Kind == report.KindGPU:
			n.gpu = r.Name
		case r.Kind == report.KindHCA:
			n.hcas = append(n.hcas, r.Name)
		}
	}
	return n
}

// namesOffered guesses from what a Node offers: where it has no resource of a
// built-in name, the only one that ends in /gpu is the GPUs', and those of the
// domain rdma are the HCAs'.
func namesOffered(node *corev1.Node) resourceNames {
	built := config.Default()
	has := func(name string) bool { _, ok := node.Status.Capacity[corev1.ResourceName(name)]; return ok }
	var n resourceNames
	var gpus []string
	for _, key := range slices.Sorted(maps.Keys(node.Status.Capacity)) {
		name := string(key)
		if strings.HasSuffix(name, "/gpu") {
			gpus = append(gpus, name)
		}
		if strings.HasPrefix(name, "rdma/") && !has(built.RDMA.Resources[0].Name) {
			n.hcas = append(n.hcas, name)
		}
	}
	if len(gpus) == 1 && !has(built.Resources.GPU) {
		n.gpu = gpus[0]
	}
	return n
}

// guessed tells that names were guessed, if any were.
func (n resourceNames) guessed() []finding.Finding {
	all := n.hcas
	if n.gpu != "" {
		all = append([]string{n.gpu}, all...)
	}
	if len(all) == 0 {
		return nil
	}
	return []finding.Finding{{
		Level: finding.Note, Subject: "configuration",
		Message: "is not given; by what the Node offers its resources are " + strings.Join(all, ", "),
		Remedy:  "--config DIR gives the configuration, with the names.",
	}}
}

// countServed takes the device plugin's numbers for HCAs where no configuration
// is given: how many share one, and which are chosen, it alone knows then.
func (r *Report) countServed(plugin *answer) {
	if plugin == nil || plugin.report == nil {
		return
	}
	served := plugin.report.Resources
	for i := range r.Resources {
		at := slices.IndexFunc(served, func(s report.Resource) bool {
			return s.Name == r.Resources[i].Name && s.Kind == report.KindHCA
		})
		if at >= 0 {
			r.Resources[i].Count, r.Resources[i].Reason = int64(served[at].Allocatable), served[at].Reason
		}
	}
}
