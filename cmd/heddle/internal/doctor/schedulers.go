package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/finding"
)

// scheduler is the program that places gangs, and the name of its profile in
// the chart's configuration; schedulerFile is where that is in its ConfigMap.
const (
	scheduler     = "heddle-scheduler"
	schedulerFile = "scheduler.yaml"
	// schedulerPlugin is the name of heddle's plugin in it.
	schedulerPlugin = "Heddle"
)

// maxListed is how many pods of one scheduler are named.
const maxListed = 5

// schedulers are the names by which pods reach heddle-scheduler.
type schedulers struct {
	// names are empty where it does not run.
	names []string
	// guessed is why the name is a guess.
	guessed error
}

// readSchedulers finds heddle-scheduler and reads its configuration. Without the
// right to, its name is taken to be that of the chart.
func readSchedulers(ctx context.Context, client rest.Interface) (schedulers, error) {
	pod, err := cluster.Pod(ctx, client, scheduler)
	if pod == nil || err != nil {
		return schedulers{}, err
	}
	names, guessed := profilesOf(ctx, client, pod)
	if guessed != nil {
		names = []string{scheduler}
	}
	return schedulers{names: names, guessed: guessed}, nil
}

// profilesOf are the schedulerNames of the profiles with heddle's plugin.
func profilesOf(ctx context.Context, client rest.Interface, pod *corev1.Pod) ([]string, error) {
	for i := range pod.Spec.Volumes {
		from := pod.Spec.Volumes[i].ConfigMap
		if from == nil {
			continue
		}
		m, err := cluster.ConfigMap(ctx, client, pod.Namespace, from.Name)
		if err != nil {
			return nil, err
		}
		if text, ok := m.Data[schedulerFile]; ok {
			return profiles(text)
		}
	}
	return nil, fmt.Errorf("pod %s/%s has no ConfigMap with %s", pod.Namespace, pod.Name, schedulerFile)
}

// profiles reads a KubeSchedulerConfiguration.
func profiles(text string) ([]string, error) {
	type set struct {
		Enabled []struct {
			Name string `yaml:"name"`
		} `yaml:"enabled"`
	}
	var c struct {
		Profiles []struct {
			SchedulerName string         `yaml:"schedulerName"`
			Plugins       map[string]set `yaml:"plugins"`
		} `yaml:"profiles"`
	}
	if yaml.Unmarshal([]byte(text), &c) != nil {
		return nil, errors.New(schedulerFile + " is no KubeSchedulerConfiguration")
	}
	var names []string
	for _, p := range c.Profiles {
		for _, s := range p.Plugins {
			for _, e := range s.Enabled {
				if e.Name == schedulerPlugin && !slices.Contains(names, nameOf(p.SchedulerName)) {
					names = append(names, nameOf(p.SchedulerName))
				}
			}
		}
	}
	if len(names) == 0 {
		return nil, errors.New("no profile has the plugin " + schedulerPlugin)
	}
	return names, nil
}

// nameOf is a scheduler's name as the API server writes it.
func nameOf(name string) string {
	if name == "" {
		return corev1.DefaultSchedulerName
	}
	return name
}

// check names the pods of a Node that have GPUs, or shares of them, and were for
// another scheduler than heddle-scheduler, which planned with what they take. It
// is a problem where both have pods on the Node.
func (s schedulers) check(pods []corev1.Pod, cfg *config.NodeConfig) []finding.Finding {
	if len(s.names) == 0 {
		return nil
	}
	level, count := finding.Note, 0
	foreign := map[string][]string{}
	for i := range pods {
		p := &pods[i]
		// Static pods ask no scheduler.
		if ended(p) || isStatic(p) || !asksForGPUs(p, cfg) {
			continue
		}
		if name := nameOf(p.Spec.SchedulerName); !slices.Contains(s.names, name) {
			foreign[name] = append(foreign[name], p.Namespace+"/"+p.Name)
			count++
		} else {
			level = finding.Problem
		}
	}
	if count == 0 {
		return nil
	}
	var words []string
	for _, name := range slices.Sorted(maps.Keys(foreign)) {
		list := slices.Sorted(slices.Values(foreign[name]))
		if n := len(list) - maxListed; n > 0 {
			list = append(list[:maxListed], fmt.Sprintf("%d more", n))
		}
		words = append(words, name+": "+strings.Join(list, ", "))
	}
	f := problem(scheduler,
		"another scheduler bound "+cli.Count(count, "pod")+" with GPUs here: "+strings.Join(words, "; "),
		"Let one scheduler have the GPU nodes: spec.schedulerName: "+s.names[0]+
			", or gpuScheduler.assign=gpu-pods in the chart.")
	f.Level = level
	if s.guessed != nil {
		f.Message += fmt.Sprintf(" (its own name is taken to be %s: %v)", scheduler, s.guessed)
	}
	return []finding.Finding{f}
}

// asksForGPUs reports whether a pod asks for GPUs, MIG devices or shares.
func asksForGPUs(p *corev1.Pod, cfg *config.NodeConfig) bool {
	mig := cfg.Domains.VendorKey("mig-")
	return slices.ContainsFunc(slices.Concat(p.Spec.InitContainers, p.Spec.Containers), func(c corev1.Container) bool {
		for name, n := range c.Resources.Limits {
			text := string(name)
			if !n.IsZero() && (text == cfg.Resources.GPU || text == cfg.Resources.SGPU || strings.HasPrefix(text, mig)) {
				return true
			}
		}
		return false
	})
}
