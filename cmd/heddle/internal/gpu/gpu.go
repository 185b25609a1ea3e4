// Package gpu is `heddle gpu`: it takes single GPUs of a node out and puts them
// back, has the node let go of their driver, and shows how each is allocated. It
// writes two annotations of the Node, and never touches a pod.
package gpu

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
	"github.com/heddle-dev/heddle/deviceplugin/report"
)

// NewCommand makes `heddle gpu`.
func NewCommand() *cobra.Command {
	parent := &cobra.Command{
		Use: "gpu", Short: "Take a GPU out for repair, or put it back",
		Long: `Take a GPU out for repair, or put it back.

Pods that have the GPU run on. A cordon is an annotation of the Node, and holds
over restarts of everything until it is taken back. UUID is the whole one, as
list and nvidia-smi -L show it.`,
		Args: cobra.NoArgs, RunE: cli.NeedCommand,
	}
	var api cluster.Flags
	api.Register(parent)
	parent.AddCommand(listCommand(&api),
		cordonCommand(&api, "cordon", "Give this GPU to no new pod, exclusive, cut or shared", true),
		cordonCommand(&api, "uncordon", "Give this GPU to pods again", false), releaseCommand(&api))
	return parent
}

func cordonCommand(api *cluster.Flags, verb, short string, cordon bool) *cobra.Command {
	return &cobra.Command{
		Use: verb + " NODE UUID", Short: short, Args: cobra.ExactArgs(2), ValidArgsFunction: api.CompleteNodes,
		RunE: func(c *cobra.Command, args []string) error {
			if !wellknown.IsGPUUUID(args[1]) {
				return cli.UsageErrorf(c, "invalid GPU UUID %.100q", args[1])
			}
			client, err := api.Client()
			if err != nil {
				return err
			}
			text, err := Change(c.Context(), client, args[0], args[1], cordon)
			if err != nil {
				return err
			}
			return cli.Write(c, fmt.Sprintf("GPU %s of node %s %s\n", args[1], args[0], text))
		},
	}
}

// Change cordons a GPU, or the opposite, and returns what it is then.
func Change(ctx context.Context, client *cluster.Client, name, uuid string, cordon bool) (string, error) {
	if cordon {
		// Where the device plugin does not answer, the operator's word counts.
		if there, err := cluster.Report(ctx, client, name); err == nil && !slices.Contains(uuids(there), uuid) {
			return "", fmt.Errorf("node %s has no GPU %s; it has %s", name, uuid, strings.Join(uuids(there), " "))
		}
	}
	text, already := "is allocated again.", "was not cordoned."
	if cordon {
		text, already = "is cordoned: no new pod gets it, and pods that have it run on.", "was cordoned already."
	}
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		node, err := cluster.Node(ctx, client, name)
		if err != nil {
			return err
		}
		cordoned, err := wellknown.ParseCordoned(node.Annotations[wellknown.CordonedGPUs])
		if err != nil {
			return fmt.Errorf("node %s: %w: correct the annotation by hand", name, err)
		}
		next := slices.DeleteFunc(slices.Clone(cordoned), func(s string) bool { return s == uuid })
		if cordon {
			next = slices.Sorted(slices.Values(append(next, uuid)))
		}
		switch {
		case slices.Equal(next, cordoned):
			text = already
			return nil
		case len(next) > wellknown.MaxCordoned:
			return fmt.Errorf("node %s: more than %d GPUs would be cordoned", name, wellknown.MaxCordoned)
		}
		return write(ctx, client, node, wellknown.CordonedGPUs, wellknown.FormatCordoned(next))
	})
	return text, err
}

// write sets an annotation, empty removes it, unless another client has written
// the Node since it was read.
func write(ctx context.Context, client rest.Interface, node *corev1.Node, key, value string) error {
	annotation := map[string]any{key: nil}
	if value != "" {
		annotation[key] = value
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": node.ResourceVersion, "annotations": annotation,
	}})
	if err != nil {
		return err
	}
	err = client.Patch(types.MergePatchType).Resource("nodes").Name(node.Name).
		VersionedParams(&metav1.PatchOptions{FieldManager: "heddle-card"}, metav1.ParameterCodec).
		Body(body).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("annotate node %s: %w", node.Name, err)
	}
	return nil
}

// entry is a GPU as list shows it.
type entry struct {
	// Index is nil for a missing or unknown GPU.
	Index    *int   `json:"index"`
	UUID     string `json:"uuid"`
	Mode     string `json:"mode,omitempty"`
	Cordoned bool   `json:"cordoned"`
	Pending  string `json:"pending,omitempty"`
}

func listCommand(api *cluster.Flags) *cobra.Command {
	c := &cobra.Command{
		Use: "list NODE", Short: "Show how each GPU of a node is allocated",
		Args: cobra.ExactArgs(1), ValidArgsFunction: api.CompleteNodes,
	}
	output := cli.AddOutput(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		client, err := api.Client()
		if err != nil {
			return err
		}
		node, err := cluster.Node(c.Context(), client, args[0])
		if err != nil {
			return err
		}
		cordoned, invalid := wellknown.ParseCordoned(node.Annotations[wellknown.CordonedGPUs])
		there, unknown := cluster.Report(c.Context(), client, node.Name)
		all := entries(there, cordoned)
		text := ""
		if unknown != nil {
			text = fmt.Sprintf("What node %s has is not known: %v.\n\n", node.Name, unknown)
		}
		if invalid != nil {
			text += invalid.Error() + "\n\n"
		}
		return output.Print(c, all, text+table(all))
	}
	return c
}

// entries returns the GPUs of a node and the cordoned ones that it does not have.
// Where its device plugin does not answer, there is nil.
func entries(there *report.Report, cordoned []string) []entry {
	all := []entry{}
	if there != nil {
		for i := range there.GPUs {
			g := &there.GPUs[i]
			all = append(all, entry{
				Index: &g.Index, UUID: g.UUID, Mode: g.Mode, Cordoned: slices.Contains(cordoned, g.UUID), Pending: g.Pending(),
			})
		}
	}
	for _, uuid := range cordoned {
		if !slices.ContainsFunc(all, func(e entry) bool { return e.UUID == uuid }) {
			all = append(all, entry{UUID: uuid, Cordoned: true})
		}
	}
	return all
}

func table(all []entry) string {
	rows := [][]string{{"GPU", "UUID", "MODE", "CORDONED", "PENDING"}}
	for _, e := range all {
		index, cordoned := "?", "no"
		if e.Index != nil {
			index = fmt.Sprint(*e.Index)
		}
		if e.Cordoned {
			cordoned = "yes"
		}
		rows = append(rows, []string{index, e.UUID, cmp.Or(e.Mode, "-"), cordoned, cmp.Or(e.Pending, "-")})
	}
	return cli.Table(rows)
}

func uuids(r *report.Report) []string {
	all := make([]string, 0, len(r.GPUs))
	for i := range r.GPUs {
		all = append(all, r.GPUs[i].UUID)
	}
	return all
}
