package publish

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/topo/master/export"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// objects keeps objects of another project's API: those with our managed-by
// label are ours, whatever they are named.
type objects struct {
	*Publisher
	what string
	on   bool
	// version is the API to use; false if the API server has none.
	version func(ctx context.Context) (schema.GroupVersionResource, bool, error)
	want    func(v *snapshot.Snapshot, version string) ([]export.Object, error)

	resource schema.GroupVersionResource
	there    bool
	known    map[string]string // Hash by name.
}

func newHyperNodes(p *Publisher) *objects {
	o := &objects{Publisher: p, what: "hypernodes", on: p.options.Exports.HyperNodes}
	named := true
	o.version = func(ctx context.Context) (_ schema.GroupVersionResource, _ bool, err error) {
		named, err = o.declares(ctx, export.HyperNodeGroup+"/"+export.HyperNodeVersion, "tierName")
		return schema.GroupVersionResource{
			Group: export.HyperNodeGroup, Version: export.HyperNodeVersion, Resource: export.HyperNodeResource,
		}, true, err
	}
	o.want = func(v *snapshot.Snapshot, _ string) ([]export.Object, error) {
		return export.HyperNodes(v.Tree, export.TiersOf(v.Levels, v.Tree), named)
	}
	return o
}

// declares tells whether the schema of an API has a field: server-side apply
// refuses an object with a field that is not there. Where the API server has no
// schemas to show, it has.
func (o *objects) declares(ctx context.Context, api, field string) (bool, error) {
	body, err := o.options.Raw.Get().AbsPath("/openapi/v3/apis/"+api).SetHeader("Accept", "application/json").DoRaw(ctx)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("ask for the schema of %s: %w", api, err)
	}
	return bytes.Contains(body, []byte(`"`+field+`"`)), nil
}

func newKueue(p *Publisher) *objects {
	o := &objects{Publisher: p, what: "kueue", on: p.options.Exports.Kueue}
	o.version = o.preferredKueue
	o.want = func(v *snapshot.Snapshot, version string) ([]export.Object, error) {
		topology, err := export.KueueTopology(version, export.TiersOf(v.Levels, v.Tree), p.options.Templates[0])
		return []export.Object{topology}, err
	}
	return o
}

// preferredKueue asks which version of Kueue's API the API server prefers.
func (o *objects) preferredKueue(ctx context.Context) (schema.GroupVersionResource, bool, error) {
	var group metav1.APIGroup
	body, err := o.options.Raw.Get().AbsPath("/apis/"+export.KueueGroup).SetHeader("Accept", "application/json").DoRaw(ctx)
	if apierrors.IsNotFound(err) {
		return schema.GroupVersionResource{}, false, nil
	}
	if err == nil {
		err = json.Unmarshal(body, &group)
	}
	if err != nil {
		return schema.GroupVersionResource{}, false, fmt.Errorf("ask for the versions of %s: %w", export.KueueGroup, err)
	}
	return schema.GroupVersionResource{
		Group: export.KueueGroup, Version: group.PreferredVersion.Version, Resource: export.KueueResource,
	}, group.PreferredVersion.Version != "", nil
}

func (o *objects) sync(ctx context.Context, v *snapshot.Snapshot, full bool) error {
	if full || o.known == nil {
		if err := o.look(ctx); err != nil {
			return err
		}
	}
	if !o.there {
		return nil
	}
	var list []export.Object
	if o.on {
		var err error
		if list, err = o.want(v, o.resource.Version); err != nil {
			return err
		}
	}
	var faults []error
	wanted := map[string]bool{}
	for i := range list {
		wanted[list[i].Metadata.Name] = true
		faults = append(faults, o.apply(ctx, &list[i]))
	}
	for name := range o.known {
		if !wanted[name] {
			faults = append(faults, o.remove(ctx, name))
		}
	}
	return errors.Join(faults...)
}

// look lists what is ours. An API that is not there is a state.
func (o *objects) look(ctx context.Context) error {
	gvr, there, err := o.version(ctx)
	if err != nil {
		return err
	}
	o.resource, o.there, o.known = gvr, there, map[string]string{}
	if there {
		list, err := o.options.Objects.Resource(gvr).List(ctx, metav1.ListOptions{
			LabelSelector: export.ManagedByKey + "=" + export.ManagedBy,
		})
		switch {
		case apierrors.IsNotFound(err), apierrors.IsForbidden(err) && !o.on:
			o.there = false
		case err != nil:
			o.known = nil
			return fmt.Errorf("list %s: %w", o.what, err)
		default:
			for i := range list.Items {
				o.known[list.Items[i].Name] = list.Items[i].Annotations[export.SpecHash]
			}
		}
	}
	absent := 0.0
	if o.on && !o.there {
		absent = 1
		o.options.Log.DebugContext(ctx, "an export is on and its CRD is not there", "what", o.what)
	}
	o.metrics.absent.WithLabelValues(o.what).Set(absent)
	return nil
}

// apply writes an object if it is not as it should be. Kueue's levels never
// change: such an object is made anew.
func (o *objects) apply(ctx context.Context, want *export.Object) error {
	name, hash := want.Metadata.Name, want.Metadata.Annotations[export.SpecHash]
	if o.known[name] == hash {
		return nil
	}
	body, err := json.Marshal(want)
	if err != nil {
		return fmt.Errorf("encode %s %s: %w", o.what, name, err)
	}
	client := o.options.Objects.Resource(o.resource)
	options := metav1.PatchOptions{FieldManager: FieldManager}
	_, err = client.Patch(ctx, name, types.ApplyPatchType, body, options)
	if _, ours := o.known[name]; ours && apierrors.IsInvalid(err) {
		if err = o.remove(ctx, name); err == nil {
			_, err = client.Patch(ctx, name, types.ApplyPatchType, body, options)
		}
	}
	if err := o.metrics.count(o.what, err); err != nil {
		return fmt.Errorf("apply %s %s: %w", o.what, name, err)
	}
	o.known[name] = hash
	return nil
}

func (o *objects) remove(ctx context.Context, name string) error {
	err := o.options.Objects.Resource(o.resource).Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	if err := o.metrics.count(o.what, err); err != nil {
		return fmt.Errorf("delete %s %s: %w", o.what, name, err)
	}
	delete(o.known, name)
	return nil
}
