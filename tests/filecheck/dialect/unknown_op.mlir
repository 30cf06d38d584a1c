// RUN: hp-opt %s --split-input-file --verify-diagnostics

// expected-error@below {{'hp.all_gathers' op unregistered operation 'hp.all_gathers' found in dialect ('hp')}}
"hp.all_gathers"() : () -> ()

// -----

// Other dialects are not taken on trust either.
// expected-error@below {{operation being parsed with an unregistered dialect}}
"tosa2.add"() : () -> ()
