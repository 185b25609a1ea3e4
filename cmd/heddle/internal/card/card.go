// Package card is `heddle card`: it takes single GPUs of a node out and puts
// them back, and shows how each is handed out. It writes one annotation of the
// Node, and never touches a pod.
package card

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
	"github.com/heddle-dev/heddle/deviceplugin/agent/report"
)

const usage = `heddle card: take a GPU out for repair, or put it back.

  heddle card list NODE            how each GPU of the node is handed out
  heddle card cordon NODE UUID     nobody new gets this GPU, whole, cut or shared
  heddle card uncordon NODE UUID   it is handed out again

Pods that have it run on. A cordon is an annotation of the Node, and holds until
it is taken back, over restarts of everything. UUID is the whole one, as list and
nvidia-smi -L show it.`

const (
	list     = "list"
	cordon   = "cordon"
	uncordon = "uncordon"
)

const (
	writeTimeout = 30 * time.Second
	// tries bounds how often somebody else may write the Node in between.
	tries = 5
)

// Run runs the command.
func Run(ctx context.Context, args []string, stdout io.Writer) error {
	set := cli.Flags("card", usage, stdout)
	var api cluster.Flags
	api.Register(set.FlagSet)
	if err := set.Read(args, 3); err != nil {
		return err
	}
	words := set.Arguments()
	switch {
	case len(words) == 2 && words[0] == list:
	case len(words) == 3 && (words[0] == cordon || words[0] == uncordon):
		if !wellknown.IsCardUUID(words[2]) {
			return cli.Usagef("card", "card: %.100q is no UUID of a GPU", words[2])
		}
	default:
		return cli.Usagef("card", "card: the uses are: list NODE, cordon NODE UUID, uncordon NODE UUID")
	}
	client, err := api.Client()
	if err != nil {
		return err
	}
	if words[0] == list {
		return show(ctx, client, words[1], stdout)
	}
	return change(ctx, client, words, stdout)
}

// change cordons a card, or the opposite.
func change(ctx context.Context, client rest.Interface, words []string, stdout io.Writer) error {
	verb, name, uuid := words[0], words[1], words[2]
	if verb == cordon {
		// The device plugin is the one who knows; without it, the operator does.
		if there, err := cluster.Report(ctx, client, name); err == nil && !has(there, uuid) {
			return fmt.Errorf("node %s has no GPU %s; it has %s", name, uuid, strings.Join(uuids(there), " "))
		}
	}
	for range tries {
		node, err := cluster.Node(ctx, client, name)
		if err != nil {
			return err
		}
		cordoned, err := wellknown.ParseCordoned(node.Annotations[wellknown.CordonedGPUs])
		if err != nil {
			return fmt.Errorf("node %s: %w: mend the annotation by hand", name, err)
		}
		next := with(cordoned, verb, uuid)
		if slices.Equal(next, cordoned) {
			return say(stdout, "GPU %s of node %s %s\n", uuid, name, already(verb))
		}
		if len(next) > wellknown.MaxCordoned {
			return fmt.Errorf("node %s: more than %d cards would be cordoned", name, wellknown.MaxCordoned)
		}
		err = write(ctx, client, node, wellknown.FormatCordoned(next))
		if apierrors.IsConflict(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("annotate node %s: %w", name, err)
		}
		return say(stdout, "GPU %s of node %s %s\n", uuid, name, done(verb))
	}
	return fmt.Errorf("annotate node %s: somebody else wrote it each of %d times", name, tries)
}

func with(cordoned []string, verb, uuid string) []string {
	next := slices.DeleteFunc(slices.Clone(cordoned), func(s string) bool { return s == uuid })
	if verb == cordon {
		next = append(next, uuid)
		slices.Sort(next)
	}
	return next
}

func done(verb string) string {
	if verb == cordon {
		return "is cordoned: nobody new gets it, and pods that have it run on."
	}
	return "is handed out again."
}

func already(verb string) string {
	if verb == cordon {
		return "was cordoned already."
	}
	return "was not cordoned."
}

// write sets the annotation, empty removes it, unless somebody has written the
// Node since it was read.
func write(ctx context.Context, client rest.Interface, node *corev1.Node, value string) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	annotation := map[string]any{wellknown.CordonedGPUs: nil}
	if value != "" {
		annotation[wellknown.CordonedGPUs] = value
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": node.ResourceVersion, "annotations": annotation,
	}})
	if err != nil {
		return err
	}
	return client.Patch(types.MergePatchType).Resource("nodes").Name(node.Name).
		VersionedParams(&metav1.PatchOptions{FieldManager: "heddle-card"}, metav1.ParameterCodec).
		Body(body).Do(ctx).Error()
}

// show lists the node's cards, or, where its device plugin does not answer,
// those that are cordoned.
func show(ctx context.Context, client rest.Interface, name string, stdout io.Writer) error {
	node, err := cluster.Node(ctx, client, name)
	if err != nil {
		return err
	}
	cordoned, wrong := wellknown.ParseCordoned(node.Annotations[wellknown.CordonedGPUs])
	there, err := cluster.Report(ctx, client, name)
	rows := [][]string{{"CARD", "UUID", "MODE", "CORDONED", "PENDING"}}
	text := ""
	if err != nil {
		text = fmt.Sprintf("What node %s has is not known: %v.\n\n", name, err)
	} else {
		for i := range there.Cards {
			c := &there.Cards[i]
			rows = append(rows, []string{
				strconv.Itoa(c.Index), c.UUID, cmp.Or(c.Mode, "-"), word(slices.Contains(cordoned, c.UUID)),
				cmp.Or(c.Pending(), "-"),
			})
		}
	}
	for _, uuid := range cordoned {
		if there == nil || !has(there, uuid) {
			rows = append(rows, []string{"?", uuid, "-", word(true), "-"})
		}
	}
	if wrong != nil {
		text += wrong.Error() + "\n\n"
	}
	return say(stdout, "%s", text+cli.Table(rows, 2))
}

func word(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

func has(r *report.Report, uuid string) bool { return slices.Contains(uuids(r), uuid) }

func uuids(r *report.Report) []string {
	all := make([]string, 0, len(r.Cards))
	for i := range r.Cards {
		all = append(all, r.Cards[i].UUID)
	}
	return all
}

func say(w io.Writer, format string, args ...any) error {
	if _, err := fmt.Fprintf(w, format, args...); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}
