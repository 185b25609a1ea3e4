package plugin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
)

// Args are the plugin's arguments in the scheduler's configuration: pluginConfig with the name
// Heddle. Everything has a default.
type Args struct {
	metav1.TypeMeta `json:",inline"`

	// TopoMaster is the address of GET /node_group. With "" gangs are placed by free resources
	// alone.
	TopoMaster string `json:"topoMaster"`
	// CAFile has the authorities of topo-master's certificate in PEM, and TokenFile the bearer
	// token for it. Both are read again for each request.
	CAFile    string `json:"caFile"`
	TokenFile string `json:"tokenFile"`
	// Interval and MaxAge are how often topo-master is polled, and how long its last
	// tree is used without an answer.
	Interval metav1.Duration `json:"interval"`
	MaxAge   metav1.Duration `json:"maxAge"`
	// WithoutMap selects what happens to gangs without a topology tree: wait or place. A
	// gang's annotation takes precedence.
	WithoutMap gang.WithoutMap `json:"withoutMap"`
	// GenericWorkload must be set if the scheduler's feature gates GenericWorkload and
	// TopologyAwareWorkloadScheduling are on. Pods with a schedulingGroup are then in the
	// PodGroup of scheduling.k8s.io that it names, and in no other gang.
	GenericWorkload bool `json:"genericWorkload"`
	// Domains are the domains of resources and annotations.
	Domains wellknown.Domains `json:"domains"`
	// Resources are names and units that differ from the domains' defaults, and Defaults what a
	// container gets without an amount, both as in the configuration of the nodes.
	Resources config.Resources     `json:"resources"`
	Defaults  config.ShareDefaults `json:"shareDefaults"`
	// Ignored are the resources that do not count when gangs are placed: vcore and vmemory, which are
	// counted by GPU.
	Ignored []corev1.ResourceName `json:"-"`
	// Placement of shares on nodes and GPUs: binpack or spread.
	Placement config.Placement `json:"placement"`
	// PodGroups creates a PodGroup object of scheduling.x-k8s.io for each gang that
	// labels describe.
	PodGroups bool `json:"podGroups"`
	// ReserveAfter is the time after which nodes are reserved for the first gang of the queue that waits; 0 for never.
	ReserveAfter metav1.Duration `json:"reserveAfter"`
	// Spares is the number of idle nodes of each lowest group, or their percentage of it, that are kept for the repair of
	// running gangs of at least SparesPriority.
	Spares         intstr.IntOrString `json:"spares"`
	SparesPriority int32              `json:"sparesPriority"`
	// GPUAware are the weights of a node's published GPU topology.
	GPUAware sgpu.Weights `json:"gpuAware"`
}

// defaultTopoMaster is topo-master's Service in its own namespace.
const defaultTopoMaster = "http://heddle-topo-master.heddle-system.svc:9001/node_group"

// readArgs reads arguments strictly: an unknown field is an error.
func readArgs(object runtime.Object) (Args, error) {
	args := Args{
		TopoMaster: defaultTopoMaster, WithoutMap: gang.Place, Domains: wellknown.AutoDomains(), PodGroups: true,
		GPUAware: sgpu.Weights{Weight: 1, LossWeight: 1}, Placement: config.PlacementBinpack,
		Defaults: config.DefaultShare(),
	}
	args.ReserveAfter.Duration = 12 * time.Hour
	args.Interval.Duration, args.MaxAge.Duration = topologyclient.DefaultInterval, topologyclient.DefaultMaxAge
	if unknown, ok := object.(*runtime.Unknown); ok && unknown != nil && len(unknown.Raw) > 0 {
		decoder := json.NewDecoder(bytes.NewReader(unknown.Raw))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&args); err != nil {
			return Args{}, fmt.Errorf("arguments of %s: %w", Name, err)
		}
	} else if object != nil && !ok {
		return Args{}, fmt.Errorf("arguments of %s: %T is not JSON", Name, object)
	}
	named := config.NodeConfig{Domains: args.Domains, Resources: args.Resources}
	named.FixVendor(args.Domains.Vendor != wellknown.VendorAuto)
	args.Domains = named.Domains
	if err := args.check(); err != nil {
		return Args{}, fmt.Errorf("arguments of %s: %w", Name, err)
	}
	for _, c := range args.nodeConfig().Each() {
		r := &c.Resources
		args.Ignored = append(args.Ignored, corev1.ResourceName(r.VCore), corev1.ResourceName(r.VMemory))
		if r.VMemoryPercentage != "" {
			args.Ignored = append(args.Ignored, corev1.ResourceName(r.VMemoryPercentage))
		}
	}
	return args, nil
}

// check returns all faults; the configuration of nodes checks its own part.
func (a *Args) check() error {
	var faults []error
	fault := func(is bool, format string, args ...any) {
		if is {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	u, err := url.Parse(a.TopoMaster)
	fault(a.TopoMaster != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https"),
		"topoMaster: %q is not an http address", a.TopoMaster)
	fault((a.CAFile != "" || a.TokenFile != "") && !strings.HasPrefix(a.TopoMaster, "https://"),
		"caFile, tokenFile: topoMaster is not an https address")
	fault(a.Interval.Duration <= 0 || a.MaxAge.Duration < a.Interval.Duration,
		"interval, maxAge: not positive, or maxAge is shorter than interval")
	fault(a.WithoutMap != gang.Wait && a.WithoutMap != gang.Place,
		"withoutMap: %q is neither %s nor %s", a.WithoutMap, gang.Wait, gang.Place)
	fault(a.ReserveAfter.Duration < 0, "reserveAfter: %v is negative", a.ReserveAfter.Duration)
	spares, err := intstr.GetScaledValueFromIntOrPercent(&a.Spares, 100, true)
	fault(err != nil || spares < 0 || a.Spares.Type == intstr.String && spares > 100,
		"spares: %q is neither a number of nodes nor a percentage", a.Spares.String())
	for _, w := range []float64{a.GPUAware.Weight, a.GPUAware.LossWeight} {
		fault(w < 0 || w > sgpu.MaxWeight, "gpuAware: weight %v is not 0 to %d", w, sgpu.MaxWeight)
	}
	return errors.Join(append(faults, a.nodeConfig().Complete())...)
}

// nodeConfig returns the configuration of nodes with the plugin's arguments. Its other fields are not used.
func (a *Args) nodeConfig() *config.NodeConfig {
	c := config.Default()
	c.Domains, c.Resources, c.SGPU.Defaults, c.SGPU.Placement = a.Domains, a.Resources, a.Defaults, a.Placement
	_ = c.Complete() // check reports the error.
	return &c
}
