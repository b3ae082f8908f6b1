package nstance

// A State is where an instance is in its life. The set is closed; conditions
// such as unhealthy, noticed, drifted and expired stand beside it.
type State string

// The states, in the order of an ordinary life. Deleting follows on any of
// them but Failed, and nothing but Deleted follows on Deleting. Draining goes back to ready or booting when a drain is
// cancelled, ready back to booting when a new leader has not heard from the agent yet.
const (
	Pending      State = "pending"      // chosen, its intent is being written
	Provisioning State = "provisioning" // intent durable, the provider has been asked
	Booting      State = "booting"      // the machine exists, the agent has not reported well yet
	Ready        State = "ready"        // registered, reported well, min_ready passed
	Draining     State = "draining"     // being emptied before deletion
	Deleting     State = "deleting"     // durably marked; the provider is asked until it says NotFound
	Deleted      State = "deleted"      // the provider confirmed absence, the record is gone
	Gone         State = "gone"         // the provider says that the machine does not run; its deletion has not started yet
	Failed       State = "failed"       // its create was definitely refused
	Parking      State = "parking"      // stand-by: being stopped or hibernated
	Parked       State = "parked"       // stand-by: asleep
	Waking       State = "waking"       // stand-by: being started, then booting
)

// Leaving reports whether the instance is being removed: it does not count
// towards its group's size.
func (s State) Leaving() bool { return s == Draining || s == Deleting || s == Deleted || s == Failed }
